"""The batch aggregator: `aggregation.model`, fast. Sans-IO: buffers and the time in, buffers to send out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_link.base import MAX_BATCH_DATAGRAMS
from inagg_link.port import Port, key_of
from inagg_wire.errors import Reason
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import HEADER_BYTES, LANE_COUNT_MAX, LANE_MULTIPLE, Encoding, Op, payload_bytes

from ..binding import Address, Binding
from ..driver import BY_RANK, TOTALS, Counters, DriverError, JobCounters, SlotWait
from .deferred_sum import HELD_WORKERS
from .kernels import absorb
from .peers import Sources, row_of
from .receive import take_batch
from .runs import RUN_BYTES
from .state import (
    BYTES_IN,
    BYTES_OUT,
    DATAGRAMS_IN,
    DATAGRAMS_OUT,
    NOTICES,
    SLOT,
    Tables,
    kept_bytes,
    make_counts,
    make_jobs,
    make_noise,
    make_out,
    make_slots,
    most_lanes,
    row_lanes,
)

Bytes = npt.NDArray[np.uint8]

HELD = (Encoding.NAT8, Encoding.NAT4)
PARTS_MAX = 16
"""Parts of a block, at most."""
OUT_RUNS = 256
OUT_BYTES = 4 * LANE_COUNT_MAX + PARTS_MAX * HEADER_BYTES
"""Room for what one batch can cause, which may be larger than it: results, partial sums. A batch that fills it is taken
piece by piece. What one datagram causes always fits: four bytes a lane at most, in so many parts."""
assert OUT_RUNS > PARTS_MAX


@dataclass(frozen=True, slots=True)
class Send:
    """Equal datagrams of ``size`` bytes, back to back in ``data``, for each address in ``to``.

    ``data`` is a view that is valid until the next one is asked for.
    """

    data: Bytes
    size: int
    to: tuple[Address, ...]


class Aggregator:
    """One data plane's slots and jobs. Not thread-safe: one caller at a time."""

    def __init__(self, slots: int, lanes: int, jobs: int = 1024, batch_datagrams: int = MAX_BATCH_DATAGRAMS) -> None:
        """Room for ``slots`` slots of up to ``lanes`` lanes, and ``jobs`` jobs at a time. ``batch_datagrams``: the most
        of a `Send`."""
        if slots < 2 or slots & (slots - 1):
            raise ValueError(f"{slots} slots: choose a power of two, 2 or more")
        self._lanes = lanes
        self._slots = make_slots(slots, lanes)
        self._jobs = make_jobs(jobs)
        self._counts = make_counts(jobs)
        self._out = make_out(OUT_BYTES, OUT_RUNS, batch_datagrams)
        self._noise = make_noise(lanes)
        self._bindings: dict[int, Binding] = {}
        self._free_rows = list(range(jobs - 1, -1, -1))
        self._by_row: list[Binding | None] = [None] * jobs
        self._most_workers = [0] * jobs
        self._sources = Sources(jobs)
        self._flow = np.zeros(4, np.int64)

    # --- jobs ---

    def bind(self, binding: Binding) -> None:
        """Admit a job or its new epoch; clears its slots. Raises `DriverError` and changes nothing if it cannot."""
        self._check(binding)
        old = self._bindings.get(binding.job)
        row = int(self._jobs.row[binding.job]) if old else self._free_rows.pop()
        if old:
            self._sources.unbind(row, old)
        else:
            self._counts.jobs[row] = 0
            self._most_workers[row] = 0
        self._most_workers[row] = max(self._most_workers[row], len(binding.children))
        self._bindings[binding.job] = self._by_row[row] = binding
        self._sources.bind(row, binding)
        lease, bound, up = binding.lease, self._jobs.table[row], binding.uplink
        bound["token"], bound["seed"], bound["full"] = binding.token, binding.seed, binding.full
        bound["children"], bound["owners"] = len(binding.children), binding.owners
        self._jobs.child_of[row, : binding.owners] = [binding.child_of(1 + i) for i in range(binding.owners)]
        bound["base"], bound["mask"], bound["part_bits"] = lease.base, lease.slots - 1, log2(binding.parts)
        bound["up_base"], bound["up_mask"] = (up.base, lease.slots * up.parts - 1) if up is not None else (0, 0)
        bound["up_bits"], bound["up_full"] = (log2(up.parts), (1 << up.parts) - 1) if up is not None else (0, 0)
        bound["key_0"], bound["key_1"] = up.key if up is not None else (0, 0)
        for op in Op:
            bound["levels"][op] = binding.levels(op)
            bound["shift"][op] = binding.format.result_shift(binding.world) - binding.unit_shift
            bound["encoding"][op] = binding.encoding(op)
            bound["lanes"][op] = binding.lanes_for(op)
            bound["result_encoding"][op] = binding.result_encoding(op)
            bound["result_bytes"][op] = binding.result_bytes(op)
            bound["up_encoding"][op] = binding.format.partial(op, binding.world)
            bound["up_lanes"][op] = binding.lanes_up(op)
            bound["up_bytes"][op] = binding.partial_bytes(op)
            bound["up_shift"][op] = binding.format.partial_shift(binding.world)
            bound["part_bytes"][op] = payload_bytes(binding.result_encoding(op), binding.lanes_up(op))
            bound["held"][op] = held(binding, op)
        self._clear(binding, bound)
        self._jobs.row[binding.job] = row

    def _clear(self, binding: Binding, bound: Any) -> None:
        """Clear the slots of ``binding``, whose row is ``bound``, and divide what they hold among them."""
        lease, most, table = binding.lease, most_lanes(self._lanes), self._slots.table
        leased = slice(lease.base, lease.base + lease.slots)
        table[leased] = np.zeros((), SLOT)
        table["at"][leased] = -1
        table["tag"][leased] = lease.generation(binding.first_part)
        table["tag"][lease.base : lease.slot(binding.first_part)] += 1
        self._slots.free[leased] = lease.base * most + row_lanes(binding.lanes) * np.arange(lease.slots)
        bound["free"] = lease.slots
        sizes = [size for op in Op if (size := binding.result_bytes(op) - HEADER_BYTES) <= most]
        bound["kept_bytes"] = kept_bytes(max(sizes, default=0))
        bound["kept_at"] = lease.base * (most - bound["kept_bytes"])

    def unbind(self, job: int) -> None:
        """Drop the job's further datagrams and forget its counters. No error if there is no such job."""
        binding = self._bindings.pop(job, None)
        if binding is None:
            return
        row = int(self._jobs.row[job])
        self._jobs.row[job] = -1
        self._sources.unbind(row, binding)
        self._by_row[row] = None
        self._free_rows.append(row)

    def _check(self, binding: Binding) -> None:
        slots, lanes = len(self._slots.table), self._lanes
        lease = binding.lease
        if lease.base + lease.slots > slots:
            raise DriverError(f"slots {lease.base} to {lease.base + lease.slots - 1}: this switch has {slots}")
        if binding.lanes > lanes:
            raise DriverError(f"{binding.lanes} lanes: this switch's slots have {lanes}")
        if max(max(binding.result_bytes(op), binding.partial_bytes(op)) for op in Op) > RUN_BYTES:
            raise DriverError(f"results of {binding.lanes} lanes do not fit a UDP datagram")
        parts = binding.parts * (binding.uplink.parts if binding.uplink is not None else 1)
        if parts > PARTS_MAX or any(binding.format.lanes_for(op, binding.lanes) % (LANE_MULTIPLE * parts) for op in Op):
            raise DriverError(f"blocks of {binding.lanes} lanes cannot be cut into {parts} parts")
        if binding.scatters and binding.place is not None:
            below, least = binding.place.child_of, 0 if binding.uplink is None else -1
            if len(below) != binding.world or not least <= min(below) <= max(below) < len(binding.children):
                raise DriverError("the binding does not say which child has each rank, for results for one alone")
        sources = [*binding.children] + ([binding.uplink.parent] if binding.uplink is not None else [])
        if len(set(sources)) != len(sources):
            raise DriverError("two peers of a job have the same address; each needs a socket of its own")
        for other in self._bindings.values():
            if other.job != binding.job and lease.overlaps(other.lease):
                raise DriverError(f"job {binding.job} would share slots with job {other.job}")
        if not self._free_rows and binding.job not in self._bindings:
            raise DriverError(f"this switch serves {len(self._by_row)} jobs at a time, and has as many")

    # --- datagrams ---

    def receive(self, data: Bytes, size: int, source: Address, now: float) -> Iterator[Send]:
        """Take datagrams of ``size`` bytes, back to back in ``data``, and yield what to send.

        ``data``: uint8, contiguous and writable (for another kind of array the kernel would first be compiled anew).
        ``now``: seconds of a monotonic clock. To be iterated to its end. Raises ValueError unless ``data`` is whole
        datagrams.
        """
        if size < 1 or data.size % size:
            raise ValueError(f"{data.size} bytes are no whole number of datagrams of {size} bytes")
        t, total = self.tables, data.size // size
        row = int(row_of(t.peers.keys, t.peers.rows, key_of(source)))
        now, taken = float(now), 0  # the kernel would be compiled again for an integer
        while taken < total:
            taken, runs = take_batch(data, size, taken, now, row, t, t.out)
            at = 0
            for i, (*_, each, count, copies) in enumerate(t.out.runs[:runs].tolist()):
                to = tuple(self._sources.name(key) for key in t.out.to[i, :copies].tolist())
                yield Send(t.out.buffer[at : at + count * each], each, to)
                at += count * each

    def register(self, port: Port) -> None:
        """Have compiled loops send to all ranks through ``port``."""
        self._sources.register(port)

    @property
    def tables(self) -> Tables:
        """All of the state, for a compiled loop that does what `receive` does. Valid until a job comes or goes."""
        peers = self._sources.peers
        return Tables(self._jobs, self._slots, self._counts, self._noise, self._out, peers, self._flow)

    # --- what an operator sees ---

    def counters(self) -> Counters:
        """A snapshot."""
        return Counters(
            datagrams_in=int(self._flow[DATAGRAMS_IN]),
            bytes_in=int(self._flow[BYTES_IN]),
            datagrams_out=int(self._flow[DATAGRAMS_OUT]),
            bytes_out=int(self._flow[BYTES_OUT]),
            notices=int(self._counts.drops[NOTICES]),
            drops={reason: int(self._counts.drops[reason]) for reason in Reason if self._counts.drops[reason]},
            jobs={job: self._job_counters(binding) for job, binding in self._bindings.items()},
        )

    def _job_counters(self, binding: Binding) -> JobCounters:
        row = int(self._jobs.row[binding.job])
        counts, n = self._counts.jobs[row], self._most_workers[row]
        lists: dict[str, Any] = {name: counts[name][:n].tolist() for name in BY_RANK}
        totals: dict[str, Any] = {name: int(counts[name]) for name in TOTALS}
        return JobCounters(**lists, **totals)

    def contents(self, job: int, slot: int) -> npt.NDArray[np.int32] | Bytes:
        """A copy of what ``slot``, which is ``job``'s and has seen a contribution, holds: the sums so far, int32,
        (lanes,), or, if its sum is complete and is not kept, the payload of its result, uint8."""
        bound, op = self._jobs.table[int(self._jobs.row[job])], int(self._slots.table["op"][slot])
        at, kept_at = self._slots.table["at"][slot], int(bound["kept_at"] + slot * bound["kept_bytes"])
        if at < 0:
            result: Bytes = self._slots.results[kept_at:][: bound["result_bytes"][op] - HEADER_BYTES].copy()
            return result
        lanes, acc, codes_held = int(bound["lanes"][op]), self._slots.acc[at:], int(bound["held"][op])
        if not codes_held:
            own: npt.NDArray[np.int32] = acc[:lanes].copy()
            return own
        out = np.zeros(lanes, np.int32)
        size = lanes if codes_held == Encoding.NAT8 else lanes // 2
        for i in range(int(self._slots.table["seen"][slot]).bit_count()):
            codes = acc.view(np.uint8)[i * size :]
            absorb(codes_held, out, codes, lanes, False, int(bound["levels"][op]))
        return out

    def waiting(self, job: int, now: float, limit: int = CHILDREN_MAX) -> tuple[int, list[SlotWait]]:
        """Number of slots of ``job`` whose sum is incomplete, or has no answer from the parent, and the ``limit`` that
        wait longest, longest first."""
        binding = self._bindings.get(job)
        if binding is None:
            return 0, []
        table, up = self._slots.table, binding.uplink
        leased = slice(binding.lease.base, binding.lease.base + binding.lease.slots)
        seen, answered = table["seen"][leased], (1 << up.parts) - 1 if up is not None else 0
        unfinished = (seen != 0) & ((seen != binding.full) | (table["here"][leased] != answered))
        waiting = leased.start + np.flatnonzero(unfinished)
        oldest = waiting[np.argsort(table["since"][waiting], kind="stable")][:limit]
        return len(waiting), [
            SlotWait(
                slot=int(slot),
                generation=int(table["tag"][slot]),
                missing=tuple(i for i in range(len(binding.children)) if not int(table["seen"][slot]) >> i & 1),
                waiting_s=max(0.0, now - float(table["since"][slot])),
            )
            for slot in oldest
        ]


def log2(power: int) -> int:
    """The exponent of a power of two."""
    return power.bit_length() - 1


def held(binding: Binding, op: Op) -> Encoding | int:
    """`JOB`'s ``held``: a slot keeps codes as they came where a few children send them and a result is made of them."""
    up, down = binding.encoding(op), binding.result_encoding(op)
    natural = up in HELD and down in HELD and (up is Encoding.NAT4 or down is Encoding.NAT8)
    alone = binding.uplink is None and binding.parts == 1
    return up if natural and len(binding.children) <= HELD_WORKERS and alone else 0
