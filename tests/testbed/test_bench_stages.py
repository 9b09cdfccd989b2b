"""`inagg bench stages`: differences of times."""

from __future__ import annotations

import itertools

import pytest

from inagg_testbed.bench import stages
from inagg_wire.formats import job_format


def test_no_stage_takes_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the same with a stage may be faster than without."""
    times = itertools.count(100.0, -1.0)
    monkeypatch.setattr(stages, "_median_us", lambda *_: next(times))
    lines = list(stages.bench_stages(job_format("nat8"), 2, 64, 1))
    assert min(line["us_per_batch"] for line in lines) == 0.0
    assert all(0 <= line["share_of_round"] <= 1 for line in lines)
