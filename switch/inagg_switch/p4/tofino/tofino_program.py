"""Entries and counters of the Tofino program, as `bmv2_program` has those of the bmv2 program.

The program is another: it knows who is missing in a sum instead of who is in it, adds up 32 lanes in each of one to
four passes, and counts by outcome. Nobody has run it on a Tofino yet (`p4/README.md`).
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
from ..counters import DATAGRAMS_IN, LINK_DROPS, REFUSED, Read, arrivals, drops_by_reason, payload_bytes
from ..entries import BITS, FITS, Fit, job_group, ternary_entry, worker_cell
from ..network import Network
from ..plane import Cell, Count, Entry, Group, Masked
from .bfruntime_info import PORTS, PORTS_KEY

PIPE_PORTS: Final = 128
"""Device ports of a pipe: a port is 9 bits, of which the upper 2 name the pipe."""

CHUNK: Final = 32
"""Lanes of a pass."""

PASSES: Final = 4
"""Most passes of a datagram. Each has a part of all registers of its own."""

FIRST, LATER = 0x40, 0x80
"""Kinds of pass (``PLACE_`` of the program), each with the number of its chunk: of 32k lanes the first pass adds up
chunk k - 1 and the last one chunk 0."""

SLOT_CLASSES: Final = 16
"""Values of the low bits of their slot by which datagrams are spread over the ports to the next pass."""

WORKERS: Final = 31
"""A register action cannot return all ones, so one bit of the 32 is never a worker's."""

NOBODY: Final = 1 << 31
"""The bit that is always set in who is missing."""

PASS_BITS: Final = {**BITS, "place": 8}
"""Bits of the key of the table `binding`, in its order."""

MODE_MAX: Final = 7
"""Mode of reading codes for a maximum; that for a sum of n is ceil(log2 n)."""


class Outcome(IntEnum):
    """Outcome of a contribution that the binding took, in its first pass."""

    WRONG_OP = 0
    STALE = 1
    DUPLICATE = 2
    REPEATED = 3
    """The sums of the first pass are complete."""
    ABSORBED = 4
    COMPLETED = 5


OUTCOME_CELLS: Final = 8
"""Cells of a worker in the counters ``outcomes``."""


class Answered(IntEnum):
    """Answer of the last pass to a contribution: to one worker, or to all."""

    ONE = 1
    ALL = 2


ANSWER_CELLS: Final = 4
"""Cells of a worker in the counters ``answers``."""


def passes_of(binding: Binding) -> int:
    """Number of passes that add up the datagrams of a job."""
    return binding.lanes // CHUNK


def tags(binding: Binding, pass_slots: int) -> Iterator[tuple[int, int]]:
    """Indices of a job's registers, in all its passes, each with the tag that its epoch begins with there: the
    generation before the first one, which then takes nothing from the slot's other registers. ``pass_slots``: indices
    of a pass."""
    lease = binding.lease
    for slot in range(lease.base, lease.base + lease.slots):
        before = lease.first_generation(slot, binding.resume_block) - 1
        for at in range(passes_of(binding)):
            yield slot + at * pass_slots, before


def base_entries(network: Network) -> Iterator[Entry | Group]:
    """See `entries.base_entries`; and the ways from pass to pass."""
    yield from entries.base_entries(network)
    yield from _ways(network)


def _ways(network: Network) -> Iterator[Entry]:
    """Entries that say which ports are loopback ports, and by which one a datagram goes to its next pass."""
    for port in dict.fromkeys(port for ports in network.loopback for port in ports):
        yield Entry(PORTS, ((PORTS_KEY, port),), "", (("loopback", 1),))
    for chunk, ports in enumerate(reversed(network.loopback), 1):
        for place in (FIRST | chunk, LATER | chunk):
            for slot in range(SLOT_CLASSES):
                to = (("place", LATER | chunk - 1), ("port", ports[slot % len(ports)]))
                yield Entry("onward", (("place", place), ("slot", slot)), "pass", to)


def job_entries(binding: Binding, network: Network, row: int, epoch: int) -> tuple[Entry | Group, ...]:
    """See `entries.job_entries`. ``epoch`` has no part: the slots of a Tofino are cleared from outside."""

    def binds(fit: Fit) -> Iterator[Entry]:
        """The entry for the first pass, and if there are more passes, one for them, which leaves out the port, as the
        first one has looked at it. So no port stands in what passes from one to the next."""
        rank, op, key = fit
        port = key["ingress_port"]
        assert isinstance(port, int)
        data = (
            ("worker", worker_cell(row, rank)),
            ("rank", rank),
            ("others", NOBODY | binding.full & ~(1 << rank)),
            ("op", int(op)),
            ("mode", ceil_log2(len(binding.children)) if op is Op.SUM else MODE_MAX),
            ("seed", binding.seed),
            ("group", job_group(row)),
            ("asker", port),
        )
        places = [Masked(FIRST | passes_of(binding) - 1, 0xFF)]
        if passes_of(binding) > 1:
            places.append(Masked(LATER, LATER))
        for place in places:
            mine = {name: value for name, value in key.items() if name != "ingress_port" or place.value & FIRST}
            yield ternary_entry("binding", PASS_BITS, FITS, mine | {"place": place}, ("bind", data))

    return entries.job_entries(binding, network, row, binds)


def switch_cells() -> Iterator[Cell]:
    """The counters that are no job's."""
    yield from (DATAGRAMS_IN, *REFUSED, *LINK_DROPS.values())


def job_cells(row: int, workers: int) -> Iterator[Cell]:
    """The counters of a job."""
    for rank in range(workers):
        yield from (_cell(row, rank, outcome) for outcome in Outcome)
        yield from (_answers(row, rank, what) for what in Answered)


def _cell(row: int, rank: int, outcome: Outcome) -> Cell:
    return Cell("outcomes", worker_cell(row, rank) * OUTCOME_CELLS + outcome)


def _answers(row: int, rank: int, what: Answered) -> Cell:
    return Cell("answers", worker_cell(row, rank) * ANSWER_CELLS + what)


def job_counters(row: int, workers: int, read: Read) -> JobCounters:
    """Counters of a job: contributions by the first pass, results by the last. Invalid codes are not: they count as
    zero in the sums all the same."""

    def by_rank(*outcomes: Outcome) -> list[Count]:
        counts = [[read(_cell(row, rank, outcome)) for outcome in outcomes] for rank in range(workers)]
        return [Count(sum(c.packets for c in mine), sum(c.frame_bytes for c in mine)) for mine in counts]

    def packets(*outcomes: Outcome) -> list[int]:
        return [count.packets for count in by_rank(*outcomes)]

    def answered(what: Answered) -> list[int]:
        return [read(_answers(row, rank, what)).packets for rank in range(workers)]

    return JobCounters(
        contributions=packets(Outcome.ABSORBED, Outcome.COMPLETED),
        duplicates=packets(Outcome.DUPLICATE),
        resends=answered(Answered.ONE),
        stale=packets(Outcome.STALE),
        bytes_in=[payload_bytes(count) for count in by_rank(*Outcome)],
        results=sum(answered(Answered.ALL)),
    )


def results_sent(row: int, binding: Binding, read: Read) -> tuple[int, int]:
    """Datagrams of results and resends of a job, each copy counted, and their bytes of UDP payload."""
    counts = job_counters(row, len(binding.children), read)
    datagrams = counts.results * len(binding.children) + sum(counts.resends)
    return datagrams, datagrams * binding.result_bytes(Op.SUM)  # those of maxima are as long


def switch_counters(read: Read) -> Counters:
    """Counters of no job: arrivals, drops, and notices, of which there is one for each drop that has any."""
    notices = sum(count for reason, count in drops_by_reason(read).items() if reason in NOTICED)
    return arrivals(read, notices)
