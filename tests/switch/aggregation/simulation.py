"""Workers of several jobs that obey the window, a bad network, hostile senders, and an exact oracle for each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from inagg_switch.aggregation.model import Output
from inagg_switch.binding import Address, Binding
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.layout import Kind, Op

from .network import Network, Packet, Weather, batches
from .oracle import Oracle
from .world import make_contribution, random_codes

PATIENCE_STEPS = 12
"""A worker that has got nothing for so long sends what it lacks once more."""
STEPS_MAX = 50_000


class Switch(Protocol):
    """`Pair`, or an aggregator alone."""

    def bind(self, binding: Binding) -> None: ...

    def receive(self, datagrams: Sequence[bytes], source: Address) -> list[Output]: ...


@dataclass(slots=True)
class Worker:
    """One rank: what it has got, and what it may send. ``next`` is the first block that it has not sent."""

    rank: int
    next: int
    got: dict[int, bytes] = field(default_factory=dict)
    """Payloads of results by block."""
    quiet_since: int = 0


class Job:
    """One job of ``blocks`` blocks from ``first`` on; about every eighth is a MAX block."""

    def __init__(self, binding: Binding, blocks: int, seed: int, first: int = 0) -> None:
        self.binding, self.seed = binding, seed
        self.first, self.end = first, first + blocks
        self.oracle = Oracle()
        self.workers = [Worker(rank, first) for rank in range(len(binding.children))]
        self.notices: dict[Reason, int] = {}
        self._datagrams: dict[tuple[int, int], tuple[Op, bytes]] = {}
        self._restarted_at = first

    @property
    def done(self) -> bool:
        return all(self.lacks(worker) >= self.end for worker in self.workers)

    def lacks(self, worker: Worker) -> int:
        """The first block whose result the worker does not have."""
        block = max(self.first, worker.next - self.binding.lease.slots)
        while block in worker.got:
            block += 1
        return block

    def next_epoch(self) -> Binding:
        """That of a new epoch, which begins with the first block that anyone lacks."""
        first = min(self.lacks(worker) for worker in self.workers)
        return replace(self.binding, token=self.binding.token + 1, resume_block=first)

    def restart(self, binding: Binding) -> None:
        """All send again from its first block on, the same codes."""
        self.binding, self._restarted_at = binding, binding.resume_block
        for worker in self.workers:
            worker.next = self._restarted_at

    def step(self, worker: Worker, step: int) -> list[Packet]:
        """What the worker sends now: new blocks as far as the window goes, and old ones if it has waited too long."""
        window, blocks = self.binding.lease.window, []
        while worker.next < self.end and self._may_send(worker, worker.next, window):
            blocks.append(worker.next)
            worker.next += 1
        if step - worker.quiet_since > PATIENCE_STEPS:
            worker.quiet_since = step
            # What it has the result of, too: others may lack a contribution that was lost in an older epoch.
            oldest = max(self._restarted_at, worker.next - 2 * window)
            blocks += [block for block in range(oldest, worker.next) if block not in blocks]
        return [(self._datagram(worker.rank, block), self.binding.children[worker.rank]) for block in blocks]

    def _may_send(self, worker: Worker, block: int, window: int) -> bool:
        return block - window < self._restarted_at or block - window in worker.got

    def _datagram(self, rank: int, block: int) -> bytes:
        key, b = (rank, block), self.binding
        if key not in self._datagrams:
            op = Op.MAX if np.random.default_rng([self.seed, block]).random() < 0.125 else Op.SUM
            rng = np.random.default_rng([self.seed, rank, block])
            encoding, lanes = b.format.encoding(op), b.format.lanes_for(op, b.lanes)
            codes = random_codes(rng, encoding, b.format, len(b.children), lanes)
            self.oracle.contributed(block, rank, op, codes)
            self._datagrams[key] = op, make_contribution(b, block, codes, op)
        datagram = self._datagrams[key][1]
        return datagram[:12] + b.token.to_bytes(4, "big") + datagram[16:]

    def take(self, worker: Worker, data: bytes, step: int) -> None:
        """A worker takes a datagram from the switch; those of older epochs it ignores."""
        parsed = wire.parse(data)
        h = parsed.header
        assert h.job == self.binding.job
        if h.token != self.binding.token:
            return
        if h.kind is Kind.NOTICE:
            assert h.reason is not None
            self.notices[h.reason] = self.notices.get(h.reason, 0) + 1
            return
        block = self.binding.lease.block_at(h.slot, h.generation, worker.next)
        assert worker.got.setdefault(block, parsed.payload) == parsed.payload, "a resend, or another epoch, differs"
        worker.quiet_since = step


class Simulation:
    """Runs jobs over one switch until all have all results and nothing is under way."""

    def __init__(self, switch: Switch, jobs: Sequence[Job], seed: int, weather: Weather | None = None) -> None:
        self.switch, self.jobs = switch, {job.binding.job: job for job in jobs}
        self.rng = np.random.default_rng(seed)
        self.up = Network(seed + 1, weather or Weather())
        self.down = Network(seed + 2, weather or Weather())
        self.datagrams = 0
        for job in jobs:
            switch.bind(job.binding)

    def run(self, hostile: Callable[[np.random.Generator], list[Packet]] | None = None, restart: float = 0.0) -> None:
        """``hostile``: more datagrams for the switch in each step. ``restart``: chance per job of a new epoch."""
        step = 0
        while len(self.up) or not all(job.done for job in self.jobs.values()):
            step += 1
            assert step < STEPS_MAX, f"hangs at {[[job.lacks(w) for w in job.workers] for job in self.jobs.values()]}"
            for job in self.jobs.values():
                if not job.done:
                    if restart and self.rng.random() < restart:
                        self._restart(job)
                    for worker in job.workers:
                        self.up.send(job.step(worker, step), step)
            arrived = self.up.due(step)
            if hostile is not None:
                arrived += hostile(self.rng)
            for datagrams, source in batches(arrived, self.rng):
                self.datagrams += len(datagrams)
                for output in self.switch.receive(datagrams, source):
                    self._sent(output, step)
            for data, destination in self.down.due(step):
                job = self.jobs[int.from_bytes(data[8:10], "big")]
                job.take(job.workers[job.binding.children.index(destination)], data, step)

    def _restart(self, job: Job) -> None:
        binding = job.next_epoch()
        self.switch.bind(binding)
        job.restart(binding)

    def _sent(self, output: Output, step: int) -> None:
        h = wire.parse(output.data).header
        job = self.jobs[h.job]
        if h.kind is Kind.RESULT:
            job.oracle.check(job.binding, output, job.workers[0].next)
        else:
            (destination,) = output.to
            assert destination in job.binding.children
        self.down.send(((output.data, address) for address in output.to), step)
