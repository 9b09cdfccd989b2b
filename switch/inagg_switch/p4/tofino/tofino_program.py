"""What the Tofino program wants to be told, and what its counters say: what `entries` and `counters` are to bmv2's.

The program is another: it knows who is missing in a sum instead of who is in it, serves jobs of exactly its number of
lanes, and counts by outcome. Nobody has run it on a Tofino yet (`p4/README.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from inagg_wire.errors import NOTICED
from inagg_wire.formats import ceil_log2
from inagg_wire.layout import Op

from ...binding import Binding
from ...driver import Counters, JobCounters
from .. import entries
from ..counters import DATAGRAMS_IN, LINK_REFUSED, REFUSED, Read, arrivals, drops_by_reason, payload_bytes
from ..entries import ROW_WORKERS
from ..network import Network, number
from ..plane import Cell, Count, Entry, Group, Masked

PIPE_PORTS: Final = 128
"""Device ports of a pipe: a port is 9 bits, of which the upper 2 name the pipe."""

WORKERS: Final = 31
"""A register action cannot return all ones, so one bit of the 32 is never a worker's."""

NOBODY: Final = 1 << 31
"""The bit that is always set in who is missing."""

TO_SWITCH, TO_DATA_PORT = 1, 2
MODE_MAX: Final = 7
"""How to read codes: ceil(log2 n) for a sum of n, this for a maximum."""


class Outcome(IntEnum):
    """What became of a contribution that the binding took."""

    WRONG_OP = 0
    STALE = 1
    DUPLICATE = 2
    RESEND = 3
    ABSORBED = 4
    RESULT = 5


OUTCOMES: Final = 8
"""A worker's counters stand from its number * OUTCOMES on."""


def base_entries(network: Network) -> Iterator[Entry | Group]:
    """See `entries.base_entries`."""
    address = Masked(number(network.address), (1 << 32) - 1)
    data_port = Masked(network.data_port, (1 << 16) - 1)
    mac = ("mac", network.mac)
    yield Entry("local", (("address", address), ("port", data_port)), "own", (mac, ("to", TO_DATA_PORT)), priority=2)
    yield Entry("local", (("address", address),), "own", (mac, ("to", TO_SWITCH)), priority=1)
    shared = entries.base_entries(network)
    yield from (item for item in shared if not isinstance(item, Entry) or item.table not in ("local", "to_switch"))


def job_entries(binding: Binding, network: Network, row: int, epoch: int) -> tuple[Entry | Group, ...]:
    """See `entries.job_entries`: the same, but for the data of entries that take a datagram. ``epoch`` has no part: the
    slots of a Tofino are cleared from outside."""
    return tuple(
        _member(item, binding, row) if isinstance(item, Entry) and item.action == "member" else item
        for item in entries.job_entries(binding, network, row, epoch)
    )


def _member(entry: Entry, binding: Binding, row: int) -> Entry:
    match, params = dict(entry.match), dict(entry.params)
    rank = params["worker"] - row * ROW_WORKERS
    op = match["op"]
    assert isinstance(op, Masked)
    data = (
        ("worker", params["worker"]),
        ("rank", rank),
        ("others", NOBODY | binding.full & ~(1 << rank)),
        ("op", op.value),
        ("mode", ceil_log2(len(binding.children)) if op.value == Op.SUM else MODE_MAX),
        ("seed", binding.seed),
        ("group", params["group"]),
    )
    return Entry(entry.table, entry.match, "bind", data, entry.priority)


def switch_cells() -> Iterator[Cell]:
    """The counters that are no job's."""
    yield from (DATAGRAMS_IN, *REFUSED, *LINK_REFUSED.values())


def job_cells(row: int, workers: int) -> Iterator[Cell]:
    """The counters of a job."""
    for rank in range(workers):
        yield from (_cell(row, rank, outcome) for outcome in Outcome)


def _cell(row: int, rank: int, outcome: Outcome) -> Cell:
    return Cell("outcomes", (row * ROW_WORKERS + rank) * OUTCOMES + outcome)


def job_counters(row: int, workers: int, read: Read) -> JobCounters:
    """What was counted of a job. Invalid codes are not: they count as zero in the sums all the same."""

    def by_rank(*outcomes: Outcome) -> list[Count]:
        counts = [[read(_cell(row, rank, outcome)) for outcome in outcomes] for rank in range(workers)]
        return [Count(sum(c.packets for c in mine), sum(c.frame_bytes for c in mine)) for mine in counts]

    def packets(*outcomes: Outcome) -> list[int]:
        return [count.packets for count in by_rank(*outcomes)]

    return JobCounters(
        contributions=packets(Outcome.ABSORBED, Outcome.RESULT),
        duplicates=packets(Outcome.DUPLICATE),
        resends=packets(Outcome.RESEND),
        stale=packets(Outcome.STALE),
        bytes_in=[payload_bytes(count) for count in by_rank(*Outcome)],
        results=sum(packets(Outcome.RESULT)),
    )


def results_sent(row: int, binding: Binding, read: Read) -> tuple[int, int]:
    """Datagrams of results and resends of a job, each copy counted, and their bytes of UDP payload."""
    counts = job_counters(row, len(binding.children), read)
    datagrams = counts.results * len(binding.children) + sum(counts.resends)
    return datagrams, datagrams * binding.result_bytes(Op.SUM)  # those of maxima are as long


def switch_counters(read: Read) -> Counters:
    """What was counted of no job: arrivals, drops, and notices, of which there is one for each drop that has any."""
    notices = sum(count for reason, count in drops_by_reason(read).items() if reason in NOTICED)
    return arrivals(read, notices, LINK_REFUSED)
