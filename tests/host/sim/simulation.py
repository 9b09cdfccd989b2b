"""Real engines and real aggregators over a bad network, in virtual time, with an exact oracle.

Everything that happens is drawn from the seed: a run that failed can be seen again with `python -m tests.host.sim`.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from inagg_host.core import Engine, Epoch, Operation, Outgoing, Refused, ShardLease
from inagg_host.core.operation import Request
from inagg_host.core.schedule import Phase
from inagg_switch.binding import Binding
from inagg_wire.errors import Reason
from inagg_wire.noise_keys import seed_for_lease

from .memory import Memory
from .network import Bytes, Network, Weather
from .trees import FLAT, Shape, Tree
from .watch import Watch
from .world import Tensor, World

Address = tuple[str, int]

END_S = 3600.0
"""A run that has not ended after so long hangs. The longest delays are seconds."""
EVENTS_MAX = 2_000_000
BUFFER_BATCHES = 4096
"""What a rank that waits for a new epoch leaves in its socket; more is lost."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a rank submits its tensors: after ``compute_s`` (uniform, up to that) each; ``one_by_one``: each only when
    the last is done. ``straggler`` is slower by ``straggler_s``."""

    one_by_one: bool = False
    compute_s: float = 0.0
    straggler: int = 0
    straggler_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Restart:
    """A new epoch, once the switches have been sent ``after`` batches; ``lost``: the shards that forget all, or, where
    ``node`` is one of a tree's, that switch of theirs."""

    after: int
    lost: tuple[int, ...]
    node: str | None = None


@dataclass(slots=True)
class Rank:
    """One rank: its engine, and what the simulation knows of it."""

    number: int
    engine: Engine
    memory: list[Memory] = field(default_factory=list)
    operations: dict[Operation, int] = field(default_factory=dict)
    """Unfinished ones, by tensor."""
    finished: int = 0
    paused: bool = False
    positions: list[int] = field(default_factory=list)
    awaits: int = 0
    """The epoch that it is to join."""
    inbox: list[tuple[int, Bytes, int]] = field(default_factory=list)
    wake_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a run that went well."""

    done_s: tuple[float, ...]
    """When the last rank had its sums, by tensor."""
    events: int
    contributions: int
    resent: int
    most_sent: int
    """How often the block that was sent most was sent by one rank."""
    epochs: int


class Simulation:
    """One run. `run` raises AssertionError, or what the engines raise."""

    of_memory = Memory

    def __init__(
        self,
        world: World,
        weather: Weather,
        seed: int,
        pace: Pace | None = None,
        restarts: tuple[Restart, ...] = (),
        trace: Callable[[str], None] | None = None,
        shape: Shape = FLAT,
    ) -> None:
        """``trace`` is told what happens, a line each."""
        self.world, self.pace, self._trace = world, pace or Pace(), trace
        self.rng = random.Random(seed)
        self.up, self.down = Network(weather, self.rng), Network(weather, self.rng)
        self.restarts = tuple(sorted(restarts, key=lambda restart: restart.after))
        self._addresses: list[Address] = [("10.0.0.1", 1000 + rank) for rank in range(world.workers)]
        self._rank_at = {address: rank for rank, address in enumerate(self._addresses)}
        self.shape, self._sharers = shape, weather.sharers
        self._leases = [world.lease] * world.shards
        self._seed = seed_for_lease(world.seed, world.lease.base)
        self.watch = Watch(world, flips=weather.flipped > 0)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._restarts = deque(self.restarts)
        self._batches_in = 0
        self._epochs = 0
        self._rejoining = False
        self._positions: dict[int, list[int]] = {}
        self.now, self._done_s = 0.0, [0.0] * len(world.tensors)
        self.trees = [Tree(shape, world, shard, self._addresses) for shard in range(world.shards)]
        self._block_of = self._make_block_table()
        starts = [world.first // world.shards] * world.shards
        self._epoch = self._bind(starts)
        self.ranks = [Rank(rank, Engine(self._epoch_for(rank))) for rank in range(world.workers)]

    def _make_block_table(self) -> dict[int, tuple[int, int]]:
        """By number: the tensor and the value block, -1 where there is none."""
        return {
            tensor.first + item.start + i: (t, item.first + i if item.phase is Phase.VALUES else -1)
            for t, tensor in enumerate(self.world.tensors)
            for item in tensor.items
            for i in range(item.count)
        }

    # --- time ---

    def run(self) -> Outcome:
        """Until all ranks have all sums, and the network is empty."""
        for rank in self.ranks:
            self._schedule_submit(rank)
        while self._events:
            self.now, _, call, arguments = heapq.heappop(self._events)
            assert self.now < END_S, f"hangs: {self._where()}"
            assert self._scheduled < EVENTS_MAX, f"hangs: {self._where()}"
            call(*arguments)
        assert all(rank.finished == len(self.world.tensors) for rank in self.ranks), f"nothing happens: {self._where()}"
        for rank in self.ranks:
            for memory in rank.memory:
                memory.check()
            assert rank.engine.idle
            assert rank.engine.deadline is None
        self._check_switches()
        watch = self.watch
        return Outcome(
            tuple(self._done_s), self._scheduled, self.up.counts["sent"], watch.resent, watch.most_sent(), self._epochs
        )

    def _where(self) -> str:
        at = ", ".join(f"rank {r.number} has {r.finished} tensors and is at {r.engine.positions}" for r in self.ranks)
        return f"at {self.now} s after {self._scheduled} events: {at}"

    def _at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (max(time_s, self.now), self._scheduled, call, arguments))

    def _soon(self, most_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._at(self.now + self.rng.random() * most_s, call, *arguments)

    def _tell(self, what: str) -> None:
        assert self._trace is not None
        self._trace(f"{self.now * 1e3:12.4f} ms  {what}")

    # --- ranks ---

    def _schedule_submit(self, rank: Rank) -> None:
        pace = self.pace
        slow_s = pace.straggler_s if rank.number == pace.straggler else 0.0
        if len(rank.memory) < len(self.world.tensors):
            self._at(self.now + slow_s + self.rng.random() * pace.compute_s, self._submit, rank)

    def _submit(self, rank: Rank) -> None:
        t = len(rank.memory)
        tensor, sums = self.world.tensors[t], self.world.expected.sums[t]
        memory = self.of_memory(
            tensor.values[rank.number], tensor.in_place, sums, self.world.lanes, tensor.float_type, rank.number,
            tensor.pieces,
        )  # fmt: skip
        rank.memory.append(memory)
        rank.operations[self._begin(rank, tensor, memory)] = t
        if not self.pace.one_by_one:
            self._schedule_submit(rank)
        self._pump(rank)

    def _begin(self, rank: Rank, tensor: Tensor, memory: Memory) -> Operation:
        return rank.engine.submit(
            Request(memory.values, memory.out, tensor.float_type, tensor.divisor, scatters=tensor.scatters), self.now
        )

    def _pump(self, rank: Rank) -> None:
        """Send what the engine has to send, and come back when it wants to."""
        if rank.paused:
            return
        engine, token = rank.engine, rank.engine.epoch.token
        for out in self._outgoing(rank):
            self.watch.sent(rank.number, out.shard, token, out.data, out.size)
            if self._trace is not None:
                self._tell(f"rank {rank.number} sends {self.watch.name(out.shard, out.data, out.size)}")
            for at_s, data in self.up.carry(out.data, out.size, self.now, rank.number // self._sharers):
                leaf = self.trees[out.shard].leaf_of(rank.number)
                self._at(at_s, self._to_switch, out.shard, leaf, data, out.size, self._addresses[rank.number])
        if self.rng.random() < 0.3:
            engine.draft_ahead()
        if engine.deadline is not None:
            self._wake_at(rank, engine.deadline)
        if engine.exhausted:
            self._new_epoch(())

    def _outgoing(self, rank: Rank) -> Iterator[Outgoing]:
        try:
            yield from rank.engine.outgoing(self.now)
        except Refused as refused:
            self._refused(rank, refused)

    def _refused(self, rank: Rank, refused: Refused) -> None:
        """The same bit of the token may have flipped on the way to the switch and on the way back of its notice: then
        the rank takes it for the end of the epoch, as a transport does."""
        if refused.reason is not Reason.WRONG_TOKEN or not self.down.counts["flipped"]:
            raise refused
        rank.paused = True
        self._new_epoch(())

    def _wake(self, rank: Rank, time_s: float) -> None:
        if rank.wake_s != time_s or rank.paused:
            return  # another wake-up has taken its place
        rank.wake_s = None
        deadline_s = rank.engine.deadline
        if deadline_s is not None and deadline_s > self.now:
            self._wake_at(rank, deadline_s)
        else:
            self._pump(rank)

    def _wake_at(self, rank: Rank, time_s: float) -> None:
        if rank.wake_s is None or time_s < rank.wake_s:
            rank.wake_s = time_s
            self._at(time_s, self._wake, rank, time_s)

    def _to_rank(self, rank: Rank, shard: int, data: Bytes, size: int) -> None:
        if rank.paused:
            if len(rank.inbox) < BUFFER_BATCHES:
                rank.inbox.append((shard, data, size))
            return
        if self._trace is not None:
            self._tell(f"rank {rank.number} gets  {self.watch.name(shard, data, size)}")
        token = rank.engine.epoch.token
        numbers = self.watch.got(rank.number, shard, token, data, size)
        try:
            finished = rank.engine.on_batch(shard, data, size, self.now)
        except Refused as refused:
            finished = []
            self._refused(rank, refused)
        for number in numbers:
            tensor, block = self._block_of[number]
            if block >= 0:
                rank.memory[tensor].wrote(block)
        assert rank.engine.positions == self.watch.low(token, rank.number)
        for operation in finished:
            assert rank.operations.pop(operation) == rank.finished, "finished out of order"
            rank.memory[rank.finished].finish()
            assert operation.invalid_codes == 0
            rank.finished += 1
            self._done_s[rank.finished - 1] = self.now
            if self.pace.one_by_one:
                self._schedule_submit(rank)
        self._pump(rank)

    # --- switches ---

    def _to_switch(self, shard: int, name: str, data: Bytes, size: int, source: Address) -> None:
        self._batches_in += 1
        while self._restarts and self._batches_in >= self._restarts[0].after:
            restart = self._restarts.popleft()
            self._new_epoch(restart.lost, restart.node)
        tree = self.trees[shard]
        if self._trace is not None:
            self._tell(f"{name} of shard {shard} gets {data.size // size} datagrams of {source}")
        for send in tree.nodes[name].aggregator.receive(data, size, source, self.now):
            for to in send.to:
                if to in self._rank_at:
                    rank = self.ranks[self._rank_at[to]]
                    for at_s, arrived in self.down.carry(
                        send.data, send.size, self.now, (shard, rank.number // self._sharers)
                    ):
                        self._at(at_s, self._to_rank, rank, shard, arrived, send.size)
                    continue
                other = tree.at[to]
                way = self.up if tree.nodes[name].parent == other else self.down
                for at_s, arrived in way.carry(send.data, send.size, self.now, (name, other, shard)):
                    self._at(at_s, self._to_switch, shard, other, arrived, send.size, tree.nodes[name].address)

    def _check_switches(self) -> None:
        """Without a restart: each contribution counted once, each sum made once."""
        if self._epochs > 1:
            return
        for name in self.trees[0].nodes:
            nodes = [tree.nodes[name] for tree in self.trees]
            counts = [node.aggregator.counters().jobs[self._epoch.job] for node in nodes]
            datagrams = self.world.blocks * nodes[0].parts
            assert sum(c.results for c in counts) == datagrams
            for child in range(len(counts[0].contributions)):
                assert sum(c.contributions[child] for c in counts) == datagrams
            assert sum(c.invalid_codes for c in counts) == 0
            assert sum(c.partials for c in counts) == self.world.blocks * self.shape.parts * (nodes[0].parent != "")

    # --- epochs: what the control plane does ---

    def _new_epoch(self, lost: tuple[int, ...], node: str | None = None) -> None:
        """The epoch ends: the ranks hear of it, each in its own time, stop, and say where they are."""
        if self._trace is not None:
            self._tell(f"epoch {self._epochs} ends; the shards {lost} forget all")
        for shard in lost:
            self.trees[shard].forget(node)
            if node is None:  # another job has the slots since then
                before = self._leases[shard]
                self._leases[shard] = replace(before, base=before.base ^ before.slots)
        if self._rejoining:
            return
        self._rejoining = True
        self._positions = {}
        for rank in self.ranks:
            rank.awaits = self._epochs + 1
            self._soon(0.05, self._pause, rank)

    def _pause(self, rank: Rank) -> None:
        rank.paused = True
        self._positions[rank.number] = rank.engine.positions
        if len(self._positions) == len(self.ranks):
            self._soon(0.05, self._join)

    def _join(self) -> None:
        """All have said where they are: go on at the smallest block, and tell the ranks, one after the other."""
        starts = [min(of_shard) for of_shard in zip(*self._positions.values(), strict=True)]
        self._epoch = self._bind(starts)
        if self._trace is not None:
            self._tell(f"epoch {self._epochs} begins, at blocks {starts}")
        self._rejoining = False
        for rank in self.ranks:
            self._soon(0.02, self._resume, rank, self._epochs, self._epoch_for(rank.number))

    def _bind(self, starts: list[int]) -> Epoch:
        world, rng = self.world, self.rng
        self._epochs += 1
        # A switch that has restarted may number its jobs in another order.
        job = rng.randrange(1, 1 << 16) if self._epochs == 1 or rng.random() < 0.5 else self._epoch.job
        token = rng.randrange(1, 1 << 32)
        self.watch.begin(job, token, starts, self._leases)
        for tree, lease, start in zip(self.trees, self._leases, starts, strict=True):
            if self._epochs > 1 and job != self._epoch.job:
                tree.unbind(self._epoch.job)
            seed, workers = seed_for_lease(self._seed, lease.base), tuple(self._addresses)
            tree.bind(Binding(job, token, world.format, world.lanes, lease, seed, workers, start, scatters=True))
        shards = tuple(
            ShardLease(("10.0.0.2", shard), lease, start)
            for shard, (lease, start) in enumerate(zip(self._leases, starts, strict=True))
        )
        return Epoch(
            self._epochs, job, token, world.format, world.workers, 0, world.lanes, world.seed, shards, None, True
        )

    def _epoch_for(self, rank: int) -> Epoch:
        return replace(self._epoch, rank=rank)

    def _resume(self, rank: Rank, number: int, epoch: Epoch) -> None:
        if rank.awaits != number:
            return  # that epoch has ended before this rank heard of it
        rank.engine.resume(epoch, self.now)
        rank.paused = False
        rank.wake_s = None
        inbox, rank.inbox = rank.inbox, []
        for shard, data, size in inbox:
            self._to_rank(rank, shard, data, size)
        self._pump(rank)
