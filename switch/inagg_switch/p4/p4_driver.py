"""A switch that runs the P4 program, as the control plane sees it: `driver.Driver` over a `plane.Plane`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from inagg_wire.formats import FORMATS
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from ..binding import Address, Binding
from ..driver import Counters, DriverError, JobCounters, Limits, Shard, SlotWait
from . import counters as counting
from .builds import FLAT, ROLES, ROOT, Build, role_for
from .entries import host_at
from .network import Network
from .plane import Cell, Count, Delete, Entry, Group, Insert, Plane, SlotState, Update
from .program import BMV2, Program

EPOCH_MAX: Final = (1 << 32) - 1


@dataclass(slots=True)
class _Job:
    """A job that is bound. ``counted``: what was counted in its epochs before this one."""

    binding: Binding
    row: int
    epoch: int
    items: tuple[Entry | Group, ...]
    start: Mapping[Cell, Count]
    """Counters of its row when this epoch began."""
    counted: JobCounters = field(default_factory=lambda: JobCounters([], [], [], [], []))
    failed: bool = False
    """Whether binding it failed: then the switch has any of ``items``, and until it says that they are deleted, they
    may accept datagrams. So the job keeps its row and its slots."""
    waits: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Slots that were seen to wait: their generation, and when that was first seen."""


class P4Driver:
    """Implements `driver.Driver` for one switch (one shard) that has just been given the program of ``build``.

    The program's state must be fresh: no entries, counters at zero. Raises `DriverError` if the switch refuses.
    """

    def __init__(
        self,
        plane: Plane,
        build: Build,
        network: Network,
        *,
        name: str,
        program: Program = BMV2,
        clear: Callable[[Binding], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clear``: clears the slots of a job's lease for its epoch; None if the program does so itself."""
        program.check_passes(network)
        self.name = name
        self.build = build
        self.network = network
        self.shards = (Shard((network.address, network.data_port), build.slots),)
        self.limits = Limits(
            frozenset(name for name in build.formats if name in FORMATS),
            program.workers,
            build.lanes,
            UDP_PAYLOAD_BYTES_1500,
            build.slots,
            build.jobs,
            program.lane_step,
            program.more_lanes(network),
            scatters=program.scatters,
            trees=build.role == ROOT,
            alone=build.role == FLAT,
            window=program.window,
        )
        self._plane = plane
        self._program = program
        self._clear = clear
        self._clock = clock
        self._jobs: dict[int, _Job] = {}
        self._rows = list(range(build.jobs))
        """Free ones, the next one first."""
        self._epoch = 0
        self._out = (0, 0)
        """Datagrams and bytes of results, of epochs that are over."""
        plane.write([Insert(item) for item in program.base_entries(network)])

    # --- jobs ---

    def admit(self, workers: Sequence[tuple[Address, ...]]) -> str | None:
        pipes: dict[int, str] = {}
        for ((address, _),) in workers:
            try:
                host = host_at(self.network, address)
            except DriverError as error:
                return str(error)
            if self._program.pipe_ports is not None:
                pipes.setdefault(host.port // self._program.pipe_ports, f"{address} on port {host.port}")
        if len(pipes) > 1:
            where = " and ".join(f"{host} in pipe {pipe}" for pipe, host in sorted(pipes.items()))
            return f"the pipes of this switch have registers of their own, and a job must lie in one: {where}"
        return None

    def bind(self, shard: int, binding: Binding) -> None:
        self._check(shard, binding)
        old = self._jobs.get(binding.job)
        row = old.row if old is not None else self._rows[0]
        self._epoch += 1
        items = self._program.job_entries(binding, self.network, row, self._epoch)
        start = self._plane.counts(list(self._program.job_cells(row, self._program.workers)))
        counted = self._accumulate(old, start) if old is not None else JobCounters([], [], [], [], [])
        before = old.items if old is not None else ()
        keep = set(before) & set(items) if old is not None and not old.failed else set()
        if old is None:
            self._rows.pop(0)
        bound = self._jobs[binding.job] = _Job(binding, row, self._epoch, items, start, counted)
        try:
            updates = _replace(before, items, keep)
            self._plane.write([update for update in updates if isinstance(update, Delete)])
            if self._clear is not None:
                self._clear(binding)
            self._plane.write([update for update in updates if isinstance(update, Insert)])
        except BaseException:
            bound.items, bound.failed = tuple(dict.fromkeys((*before, *items))), True
            with suppress(DriverError):
                self.unbind(shard, binding.job)
            raise

    def unbind(self, shard: int, job: int) -> None:
        self._only(shard)
        bound = self._jobs.get(job)
        if bound is None:
            return
        self._plane.write([Delete(item) for item in reversed(bound.items)])
        # After the entries are gone, so that nothing is counted any more.
        self._accumulate(bound, self._plane.counts(list(self._program.job_cells(bound.row, self._program.workers))))
        del self._jobs[job]
        self._rows.append(bound.row)

    def _accumulate(self, job: _Job, now: Mapping[Cell, Count]) -> JobCounters:
        """The job's counters of all its epochs, up to ``now``; what it sent goes into the switch's total."""
        read = counting.since(job.start, now)
        datagrams, sent_bytes = self._program.results_sent(job.row, job.binding, read)
        self._out = self._out[0] + datagrams, self._out[1] + sent_bytes
        return counting.add(job.counted, self._program.job_counters(job.row, len(job.binding.children), read))

    def _check(self, shard: int, binding: Binding) -> None:
        self._only(shard)
        lease, build = binding.lease, self.build
        if binding.format.name not in self.limits.formats:
            raise DriverError(f"the program {build.name} does not add up {binding.format.name}")
        if lease.base + lease.slots > build.slots:
            raise DriverError(f"slots {lease.base} to {lease.base + lease.slots - 1}: this switch has {build.slots}")
        if role_for(binding) != build.role:
            raise DriverError(f"the program {build.name} is for {ROLES[build.role]}")
        if binding.parts != 1 or (binding.uplink is not None and binding.uplink.parts != 1):
            raise DriverError("blocks come here in one datagram, and go up in one: choose fewer lanes")
        if binding.lanes > build.lanes:
            raise DriverError(f"{binding.lanes} lanes: the program {build.name} has {build.lanes}")
        step = self._program.lane_step
        if binding.lanes % step:
            raise DriverError(f"{binding.lanes} lanes: jobs of the program {build.name} have a multiple of {step}")
        if len(set(binding.children)) != len(binding.children):
            raise DriverError("two ranks have the same address; each needs a socket of its own")
        for number, other in self._jobs.items():
            if number != binding.job and binding.lease.overlaps(other.binding.lease):
                raise DriverError(f"job {binding.job} would share slots with job {number}")
        if binding.job not in self._jobs and not self._rows:
            raise DriverError(f"this switch serves {build.jobs} jobs at a time, and has as many")
        if self._epoch == EPOCH_MAX:
            raise DriverError("this switch has had 2**32 - 1 epochs; restart it")

    @staticmethod
    def _only(shard: int) -> None:
        if shard != 0:
            raise DriverError(f"this switch has no shard {shard}")

    # --- looking ---

    def counters(self, shard: int) -> Counters:
        self._only(shard)
        cells = [*self._program.switch_cells()]
        for job in self._jobs.values():
            cells += self._program.job_cells(job.row, len(job.binding.children))
        now = self._plane.counts(cells)
        counters = self._program.switch_counters(now.__getitem__)
        counters.datagrams_out += self._out[0]
        counters.bytes_out += self._out[1]
        for number, job in self._jobs.items():
            read = counting.since(job.start, now)
            datagrams, sent_bytes = self._program.results_sent(job.row, job.binding, read)
            counters.datagrams_out += datagrams
            counters.bytes_out += sent_bytes
            mine = self._program.job_counters(job.row, len(job.binding.children), read)
            counters.jobs[number] = counting.add(job.counted, mine)
        return counters

    def waiting(self, shard: int, job: int, limit: int) -> tuple[int, list[SlotWait]] | None:
        """See `Driver.waiting`. A switch without a clock does not say since when a slot waits: the time is that since
        this was first seen."""
        self._only(shard)
        bound = self._jobs.get(job)
        if bound is None:
            return 0, []
        lease = bound.binding.lease
        states = self._plane.slots(lease.base, lease.slots)
        if states is None:
            return None
        now = self._clock()
        found = []
        for slot, state in enumerate(states, lease.base):
            if not _waits(state, bound.epoch):
                bound.waits.pop(slot, None)
                continue
            generation, first_s = bound.waits.get(slot, (0, now))
            if generation != state.tag:
                first_s = now
            bound.waits[slot] = state.tag, first_s
            missing = tuple(rank for rank in range(len(bound.binding.children)) if not state.seen >> rank & 1)
            found.append(SlotWait(slot, state.tag, missing, now - first_s))
        found.sort(key=lambda wait: -wait.waiting_s)
        return len(found), found[:limit]

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Descriptors that become readable when the switch serves no more. For any thread."""
        return self._plane.sentinels

    def died(self) -> str | None:
        """Reason why the switch serves no more; None if it does. For any thread."""
        return self._plane.died()

    def wait_for_death(self, shard: int) -> str:
        """Sentence on the end of the switch, whose sentinel is readable."""
        self._only(shard)
        return self.died() or "the switch serves no more"

    def restart(self, shard: int) -> None:
        """See `Driver.restart`: this switch is not ours to start."""
        raise DriverError(self.died() or "it is not ours to start")

    def close(self) -> None:
        """End all jobs; the switch goes on to forward what is none of ours."""
        jobs, self._jobs = self._jobs, {}
        try:
            if self._plane.died() is None:
                self._plane.write([Delete(item) for job in jobs.values() for item in reversed(job.items)])
        finally:
            self._plane.close()


def _replace(old: Sequence[Entry | Group], new: Sequence[Entry | Group], keep: set[Entry | Group]) -> list[Update]:
    """Updates that make ``new`` of ``old``. What both have is to ``keep``, so that in between a worker is told of its
    old token; unless it is not known whether the switch has it."""
    return [
        *(Delete(item) for item in reversed(old) if item not in keep),
        *(Insert(item) for item in new if item not in keep),
    ]


def _waits(state: SlotState, epoch: int) -> bool:
    return state.epoch == epoch and state.seen != 0 and not state.here
