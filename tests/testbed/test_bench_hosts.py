"""`inagg bench hosts`: hosts of several ranks, in namespaces."""

from __future__ import annotations

import pytest

from inagg_testbed.bench.hosts import ALL_RANKS, GLOO, ONE_RANK, bench_hosts


@pytest.mark.root
@pytest.mark.slow  # that it is so, with less, is in tests/host/torch/test_hosts.py
def test_a_host_that_sums_inside_first_sends_as_much_as_one_rank() -> None:
    elements = 1 << 18
    lines = list(bench_hosts(2, 2, "1gbit", "fix32", [4 * elements], seconds=0.1))
    found = {line["system"]: line for line in lines}
    assert list(found) == [ONE_RANK, ALL_RANKS, GLOO]
    assert all(line["error"] < 1e-6 for line in lines)
    for way in ("host_bytes_up", "host_bytes_down"):
        assert 4 * elements < found[ONE_RANK][way] < 1.25 * 4 * elements  # of four bytes each, and headers
        assert 1.9 < found[ALL_RANKS][way] / found[ONE_RANK][way] < 2.1
