"""The tables of docs/sizing.md say what the switch chooses."""

from __future__ import annotations

import re

import pytest

from inagg_docs.tree import ROOT
from inagg_switch.aggregation.state import most_lanes
from inagg_switch.cli.software_settings import usual_slots
from inagg_switch.control.admission import JobSpec, check
from inagg_switch.driver import Limits
from inagg_switch.software.config import SoftwareConfig
from inagg_wire.formats import CHILDREN_MAX, FORMATS

TEXT = (ROOT / "docs/sizing.md").read_text()


def rows(head: str) -> list[list[str]]:
    """The rows of the table whose header begins so, as cells."""
    lines = TEXT[TEXT.index(f"| {head}") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def formats_of(cell: str, before: set[str]) -> set[str]:
    """Those that a cell names; "the others" are all but those of the row ``before``."""
    if cell == "every":
        return set(FORMATS)
    return set(FORMATS) - before if cell == "the others" else set(cell.split(", "))


def spec(
    datagram_bytes: int, format_name: str, workers: int, lanes: int | None = None, *, tree: bool = False
) -> JobSpec:
    slots = usual_slots(datagram_bytes)
    limits = Limits(frozenset(FORMATS), CHILDREN_MAX, 1 << 16, datagram_bytes, slots)
    return check(limits, name="job", workers=workers, format_name=format_name, lanes=lanes, window=None, tree=tree)


@pytest.mark.parametrize("workers", [1, 2, 4, 32])
def test_the_table_of_windows_is_what_the_switch_chooses(workers: int) -> None:
    found, before = rows("datagrams"), set[str]()
    assert len(found) == 7
    for datagrams, lanes, formats, slots, window, of_job, jobs in found:
        size = int(datagrams.split()[0])
        before = formats_of(formats, before)
        for name in before:
            chosen = spec(size, name, workers, None if lanes == "the most" else int(lanes))
            assert usual_slots(size) == int(slots)
            assert (chosen.window, chosen.slots_leased) == (int(window), int(of_job)), name
            assert int(slots) // chosen.slots_leased == int(jobs)


def test_the_table_of_trees_is_what_the_switch_chooses() -> None:
    named = set[str]()
    for formats, parts, of_job, jobs in rows("in a tree, 64 workers, 1472 bytes"):
        for name in formats.split(", "):
            chosen = spec(1472, name, 64, tree=True)
            assert (chosen.parts, chosen.slots_leased) == (int(parts), int(of_job)), name
            assert usual_slots(1472) // chosen.slots_leased == int(jobs)
            named.add(name)
    assert named == set(FORMATS)


def test_the_most_that_jobs_can_take_is_what_a_shard_reserves() -> None:
    said = re.findall(r"([\d.]+) GB (?:with frames of 1500 bytes|with jumbo frames|on loopback)", TEXT)
    sizes = (1472, 8972, 13094)
    reserved = [usual_slots(size) * most_lanes(SoftwareConfig(datagram_bytes=size).lanes) * 5 for size in sizes]
    assert [float(number) for number in said] == [pytest.approx(size / 1e9, rel=0.03) for size in reserved]
