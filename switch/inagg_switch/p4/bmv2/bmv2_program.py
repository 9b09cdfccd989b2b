"""Entries and counters of the bmv2 program, as `tofino_program` has those of the Tofino program.

The cells of its counters are laid out as p4/bmv2/cells.p4 says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from inagg_wire.layout import HEADER_BYTES, Op

from ...binding import Binding
from ...driver import Counters, JobCounters
from .. import entries
from ..counters import DATAGRAMS_IN, LINK_DROPS, REFUSED, Read, arrivals, payload_bytes
from ..entries import BITS, FITS, Fit, job_group, ternary_entry, worker_cell
from ..network import Network
from ..plane import Cell, Entry, Group

SENT_CELLS: Final = 4
"""Cells of a job in the counters ``sent``: by op, and `SENT_ACK`."""
SENT_NOTICE: Final = 0
"""Cell of notices, in the first row alone."""
SENT_ACK: Final = 3
INVALID_CELLS: Final = 16
"""Cells of a job in the counters ``invalid_codes``."""
INVALID_BITS: Final = 9
"""Cells in use: number i counts datagrams whose number of invalid codes has bit i set."""
NOTICES_SENT: Final = Cell("sent", SENT_NOTICE)
BY_WORKER: Final = {
    "contributions": "contributions",
    "duplicates": "duplicates",
    "resends": "resends",
    "stale": "stale",
    "bytes_in": "admitted",
}
"""Field of `JobCounters` -> array of counters, by `worker_cell`."""


def job_entries(binding: Binding, network: Network, row: int, epoch: int) -> tuple[Entry | Group, ...]:
    """See `entries.job_entries`. ``epoch``: a number that no other epoch had since the program was loaded; slots that
    hold another one count as cleared."""

    def binds(fit: Fit) -> Iterator[Entry]:
        data = (
            ("row", row),
            ("worker", worker_cell(row, fit.rank)),
            ("worker_bit", 1 << fit.rank),
            ("owners", binding.full if binding.owners else 0),
            *epoch_data(binding, row, epoch),
            *_arithmetic(binding, fit.op),
            ("result_format", int(binding.result_encoding(fit.op))),
        )
        yield ternary_entry("binding", BITS, FITS, fit.key, ("bind", data))

    return entries.job_entries(binding, network, row, binds)


def epoch_data(binding: Binding, row: int, epoch: int) -> tuple[tuple[str, int], ...]:
    """Action data on the state of slots in one epoch, and to whom results go."""
    return (
        ("full", binding.full),
        ("epoch", epoch),
        ("generation", binding.lease.generation(binding.resume_block)),
        ("first_slot", binding.lease.slot(binding.resume_block)),
        ("group", job_group(row)),
    )


def _arithmetic(binding: Binding, op: Op) -> tuple[tuple[str, int], ...]:
    fmt, n = binding.format, binding.world
    shift = fmt.result_shift(n) - binding.unit_shift if binding.uplink is None else fmt.partial_shift(n)
    return (
        ("seed", binding.seed),
        ("levels", binding.levels(op)),
        ("shift", shift if op is Op.SUM else 0),
    )


def switch_cells() -> Iterator[Cell]:
    """The counters that are no job's."""
    yield from (DATAGRAMS_IN, NOTICES_SENT, *REFUSED, *LINK_DROPS.values())


def job_cells(row: int, workers: int) -> Iterator[Cell]:
    """The counters of a job."""
    for name in BY_WORKER.values():
        yield from _by_worker(name, row, workers)
    yield Cell("results", row)
    yield from _invalid_codes(row)
    yield from (sent(row, what) for what in (*Op, SENT_ACK))


def _by_worker(name: str, row: int, workers: int) -> Iterator[Cell]:
    return (Cell(name, worker_cell(row, rank)) for rank in range(workers))


def _invalid_codes(row: int) -> Iterator[Cell]:
    return (Cell("invalid_codes", row * INVALID_CELLS + bit) for bit in range(INVALID_BITS))


def sent(row: int, what: int) -> Cell:
    """The counter of what went out: results of an op, or `SENT_ACK`."""
    return Cell("sent", row * SENT_CELLS + what)


def job_counters(row: int, workers: int, read: Read) -> JobCounters:
    """Counters of a job."""
    by_worker = {field: [read(cell) for cell in _by_worker(name, row, workers)] for field, name in BY_WORKER.items()}
    bytes_in = [payload_bytes(count) for count in by_worker.pop("bytes_in")]
    packets: dict[str, Any] = {field: [count.packets for count in counts] for field, counts in by_worker.items()}
    return JobCounters(
        **packets,
        bytes_in=bytes_in,
        results=read(Cell("results", row)).packets,
        invalid_codes=sum(read(cell).packets << bit for bit, cell in enumerate(_invalid_codes(row))),
    )


def results_sent(row: int, binding: Binding, read: Read) -> tuple[int, int]:
    """Datagrams of results and acknowledgements of a job, each copy counted, and their bytes of UDP payload."""
    counts = {op: read(sent(row, op)).packets for op in Op}
    acks = read(sent(row, SENT_ACK)).packets
    size = acks * HEADER_BYTES + sum(binding.result_bytes(op) * count for op, count in counts.items())
    return acks + sum(counts.values()), size


def switch_counters(read: Read) -> Counters:
    """Counters of no job: arrivals, drops, notices."""
    return arrivals(read, read(NOTICES_SENT).packets)
