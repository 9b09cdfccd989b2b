"""`inagg bench allreduce`: the lines that it gives."""

from __future__ import annotations

from inagg_testbed.bench.allreduce import LOSSLESS, Ranks, bench_allreduce

FIELDS = {
    "bench", "system", "workers", "format", "elements", "median_s", "elements_per_s", "wire_bytes_up",
    "wire_bytes_down", "runs",
}  # fmt: skip

OF_PACKETS = {"lanes", "packets_per_s", "busy_packets_per_s", "wire_bytes_per_element"}


def test_a_line_for_each_system_and_one_that_compares_them() -> None:
    lossy, calm, ratio = bench_allreduce(1, "nat4", [1 << 16], against=None, seconds=0.01, loss=0.01)
    assert (lossy["system"], calm["system"]) == ("inagg", LOSSLESS)
    assert set(calm) == FIELDS
    assert set(lossy) == {*FIELDS, "loss"}
    for line in (lossy, calm):
        assert (line["workers"], line["format"], line["elements"]) == (1, "nat4", 1 << 14)
        assert line["elements_per_s"] == line["elements"] / line["median_s"]
    blocks = -(-(1 << 14) // 2896)  # of the values, and one of scales
    assert calm["wire_bytes_up"] >= (blocks + 1) * 1472
    assert calm["wire_bytes_down"] >= (blocks + 1) * 1472
    assert ratio == {
        "bench": "allreduce", "workers": 1, "format": "nat4", "elements": 1 << 14,
        "ratio_to_lossless": calm["median_s"] / lossy["median_s"],
    }  # fmt: skip


def test_bytes_are_those_of_the_runs_without_what_keeps_ranks_together() -> None:
    line, *_ = bench_allreduce(1, "nat4", [1 << 10], against=None, seconds=0.01, lanes=2896)
    for way in ("wire_bytes_up", "wire_bytes_down"):
        assert 2 * 1472 <= line[way] < 4 * 1472, "one block of scales and one of values"
    assert set(line) == {*FIELDS, *OF_PACKETS}, "no Tofino adds up so many lanes"
    assert round(line["packets_per_s"] * line["median_s"], 6) >= 4, "each up and down"
    assert line["wire_bytes_per_element"] * line["elements"] >= 2 * (1472 + 66)


def test_packets_are_told_of_ours_alone() -> None:
    """Gloo's are counted nowhere, also where it scatters."""
    *lines, _ = bench_allreduce(1, "nat8", [1 << 10], against="gloo", ways=["scattered"], seconds=0.01, lanes=8)
    told = {line["system"]: "packets_per_s" in line for line in lines}
    assert told == {"inagg": True, "inagg scattered": True, "gloo": False, "gloo scattered": False}


def test_the_switch_is_asked_what_it_has_counted() -> None:
    """As `inagg bench bmv2` does, around its runs."""
    with Ranks(1, "nat8", against=False) as ranks:
        before_in, before_out = ranks.datagrams()
        ranks.run("inagg", 1 << 10, 1)
        after_in, after_out = ranks.datagrams()
    assert after_in - before_in >= 2, "a block of scales and one of values"
    assert after_out - before_out >= 2
