"""All interleavings of a small world, over the real engine and the real switch.

A core is deterministic: what it does depends on its state and on what it is given. So it is run once for every state
and input that come up (`Table`), and the interleavings, of which there are millions, are walked in those tables.

Two networks. An *everlasting* one never forgets: a datagram that was ever sent may arrive at any time and any number of
times, or never. That covers every loss, repetition, delay and reordering without a bound, and sending again is nothing
new in it. The other one *counts*: it has what is under way, once each, and a budget of losses and repetitions, so that
ranks must send again when their timers say so.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from inagg_host.core import Engine, Epoch, Operation, ShardLease
from inagg_host.core.headers import KIND_AT, TOKEN_AT
from inagg_host.core.state import OPERATIONS
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Address, Binding
from inagg_switch.control.tree import Branch, bindings
from inagg_wire.layout import HEADER_BYTES, Kind
from inagg_wire.noise import seed_for_lease
from inagg_wire.slots import Lease

from .memory import Content, Memory
from .watch import PLACE, PREFIX_BYTES
from .world import World

SWITCH = -1
"""The root of the tree, or the only switch; further ones have -2, -3 and so on."""
JOB = 7
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Message:
    """A datagram, or ``data`` None: something else that happens to a core, ``what``. ``to``: a rank or a switch;
    ``rank``: who sends it, or gets it from a switch."""

    to: int
    rank: int
    data: bytes | None
    what: str = ""


class Switch(Protocol):
    """What is searched as a switch. `receive` gives datagrams with the ranks and switches to send them to."""

    token: int

    def receive(self, data: bytes, source: int) -> list[tuple[bytes, list[int]]]: ...

    def key(self) -> Hashable: ...


class Table(Generic[S]):
    """A core as a table: states by number, and what each does with each message."""

    def __init__(
        self, first: S, key: Callable[[S], Hashable], step: Callable[[S, Message], list[Message]], post: Post
    ) -> None:
        self.states = [first]
        self._key, self._step, self._post = key, step, post
        self._numbers = {key(first): 0}
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def step(self, state: int, message: int) -> tuple[int, int]:
        """The next state, and a bit for each message that is sent."""
        known = self._known.get((state, message))
        if known is None:
            core = copy.deepcopy(self.states[state])
            sent = self._post.bits(self._step(core, self._post.messages[message]))
            known = self._known[state, message] = self.number(core), sent
        return known

    def number(self, core: S) -> int:
        """The number of a state."""
        key = self._key(core)
        number = self._numbers.setdefault(key, len(self.states))
        if number == len(self.states):
            self.states.append(core)
        return number


class Post:
    """Messages by number."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._numbers: dict[Message, int] = {}

    def number(self, message: Message) -> int:
        number = self._numbers.setdefault(message, len(self.messages))
        if number == len(self.messages):
            self.messages.append(message)
        return number

    def bits(self, messages: Iterable[Message]) -> int:
        return sum({1 << self.number(message) for message in messages})


# --- the cores ---


class RealSwitch:
    """The aggregator."""

    def __init__(self, binding: Binding, slots: int, peers: dict[int, Address]) -> None:
        """``peers``: the addresses of ranks and switches."""
        self.token, self._peers = binding.token, peers
        self._numbers = {address: number for number, address in peers.items()}
        self._aggregator = Aggregator(slots, binding.lanes, 1)
        self._aggregator.bind(binding)

    def receive(self, data: bytes, source: int) -> list[tuple[bytes, list[int]]]:
        buffer = np.frombuffer(bytearray(data), np.uint8)
        sends = self._aggregator.receive(buffer, len(data), self._peers[source], 0.0)
        return [
            (row.tobytes(), [self._numbers[to] for to in send.to])
            for send in sends
            for row in send.data.reshape(-1, send.size)
        ]

    def key(self) -> Hashable:
        slots = self._aggregator._slots
        used = slots.seen != 0
        return (
            self.token,
            slots.tag.tobytes(),
            slots.seen.tobytes(),
            slots.here.tobytes(),
            slots.bare.tobytes(),
            slots.asked.tobytes(),
            slots.op[used].tobytes(),
            *(self._aggregator.contents(JOB, slot).tobytes() for slot in np.flatnonzero(used).tolist()),
        )


class Fabric(Protocol):
    """Which switches there are, the root first, and to which of them each rank sends."""

    def make(self, world: World, token: int, start: int) -> list[Switch]: ...

    def leaf_of(self, rank: int) -> int: ...


def peers_of(world: World, switches: int) -> dict[int, Address]:
    """Addresses of ranks and switches."""
    ranks = {rank: ("10.0.0.1", 1 + rank) for rank in range(world.workers)}
    return {**ranks, **{SWITCH - i: ("10.0.0.2", 1 + i) for i in range(switches)}}


@dataclass(frozen=True, slots=True)
class OneSwitch:
    """No tree. ``make_one``: of which kind it is."""

    make_one: Callable[[World, int, int], Switch] | None = None

    def make(self, world: World, token: int, start: int) -> list[Switch]:
        if self.make_one is not None:
            return [self.make_one(world, token, start)]
        peers = peers_of(world, 1)
        workers = tuple(peers[rank] for rank in range(world.workers))
        binding = Binding(JOB, token, world.format, world.lanes, world.lease, world.seed, workers, start, scatters=True)
        return [RealSwitch(binding, 2 * world.lease.slots, peers)]

    def leaf_of(self, rank: int) -> int:
        return SWITCH


@dataclass(frozen=True, slots=True)
class TwoLevels:
    """A root, and leaves with so many ranks each."""

    leaves: tuple[int, ...]
    parts: int = 1

    def make(self, world: World, token: int, start: int) -> list[Switch]:
        peers = peers_of(world, 1 + len(self.leaves))
        lease, first, branches = world.lease, 0, list[Branch]()
        for i, count in enumerate(self.leaves):
            ranks = tuple(range(first, first + count))
            branches.append(Branch(str(i), peers[SWITCH - 1 - i], lease, ranks))
            first += count
        larger = Lease((lease.slots - lease.base) * self.parts, lease.slots * self.parts)
        root = Branch("root", peers[SWITCH], larger, branches=tuple(branches))
        workers, seed = tuple(peers[rank] for rank in range(world.workers)), seed_for_lease(world.seed, lease.base)
        flat = Binding(JOB, token, world.format, world.lanes, lease, seed, workers, start, scatters=True)
        bound = bindings(flat, root, self.parts)
        names = ["root", *map(str, range(len(self.leaves)))]
        return [RealSwitch(bound[name], 2 * lease.slots * self.parts, peers) for name in names]

    def leaf_of(self, rank: int) -> int:
        first = 0
        for i, count in enumerate(self.leaves):
            first += count
            if rank < first:
                return SWITCH - 1 - i
        raise AssertionError(f"no leaf has rank {rank}")


class Core:
    """An engine, and the memory of its caller, who submits the next tensor when told to. There is one of each rank, as
    records have addresses in them: to be in another state, it is put back into it."""

    def __init__(self, world: World, epoch: Epoch, leaf: int) -> None:
        """``leaf``: the switch that it sends to."""
        self.world, self.engine, self._leaf = world, Engine(epoch), leaf
        for tensor in world.tensors:
            self.engine._room(tensor.float_type)  # so that all states have the same arrays
        self.memory: list[Memory] = []
        self.finished = 0

    def _arrays(self) -> list[npt.NDArray[Any]]:
        """All that the engine can change, but for what is only in use during a call."""
        st, job = self.engine.state, self.engine.state.job[0]
        used = [int(at) & (OPERATIONS - 1) for at in range(int(job["oldest"]), int(job["loaded"]))]
        arrays = [st.job, st.shards, st.rows, self.engine.rings, *(st.operations[at : at + 1] for at in used)]
        for operation in self.engine.operations:
            arrays += [operation.bytes_of, operation.magnitudes, operation.lacking]
        for room, _ in self.engine._rooms.values():
            arrays += [room.arrays[name] for name in ("notes", "below", "expected")]
        return arrays

    def save(self) -> Saved:
        st, e = self.engine.state, self.engine
        for name, value in STILL.items():  # time stands still
            st.shards[name] = value
        st.rows["sent_s"] = 0.0
        arrays = tuple(array.copy() for array in self._arrays())
        memory = tuple((memory, memory.save()) for memory in self.memory)
        return Saved(
            self.finished, e.epoch, e._next_block, e._loaded, tuple(e.operations), arrays, memory, self._key(),
            int(st.shards["snd_una"][0]), int(st.shards["snd_nxt"][0]), int(st.shards["snd_max"][0]), e.deadline,
        )  # fmt: skip

    def put_back(self, saved: Saved) -> None:
        e = self.engine
        self.finished, e.epoch, e._next_block, e._loaded = saved.finished, saved.epoch, saved.next_block, saved.loaded
        e.operations = deque(saved.operations)
        e.state.job[:] = saved.arrays[0]  # which says, too, what records are used
        for array, was in zip(self._arrays(), saved.arrays, strict=True):
            array[:] = was
        self.memory = [memory for memory, _ in saved.memory]
        for memory, content in saved.memory:
            memory.put_back(content)

    def step(self, message: Message) -> list[Message]:
        engine, rank = self.engine, self.engine.epoch.rank
        if message.what == "submit":
            self._submit()
        elif message.what.startswith("resume"):
            token, start = map(int, message.what.split()[1:])
            shard = replace(engine.epoch.shards[0], resume_block=start)
            engine.resume(replace(engine.epoch, token=token, shards=(shard,)), 0.0)
        elif message.data is not None:
            data = np.frombuffer(bytearray(message.data), np.uint8)
            for _ in engine.on_batch(0, data, len(message.data), 0.0):
                memory = self.memory[self.finished]
                for block in range(self.world.tensors[self.finished].value_blocks(self.world.lanes)):
                    memory.wrote(block)
                memory.finish()
                self.finished += 1
        now = (engine.deadline or 0.0) if message.what == "timer" else 0.0
        return [Message(self._leaf, rank, out.data[at : at + out.size].tobytes()) for out in engine.outgoing(now)
                for at in range(0, out.data.size, out.size)]  # fmt: skip

    def _submit(self) -> None:
        t = len(self.memory)
        tensor, sums = self.world.tensors[t], self.world.expected.sums[t]
        rank = self.engine.epoch.rank
        memory = Memory(
            tensor.values[rank], tensor.in_place, sums, self.world.lanes, tensor.float_type, rank, tensor.pieces
        )
        self.memory.append(memory)
        self.engine.submit(memory.values, memory.out, tensor.float_type, 0.0, tensor.divisor, scatter=tensor.scatters)

    def _key(self) -> Hashable:
        """What tells states apart. Drafts do not: whatever they are, the same codes come of them."""
        st, slots = self.engine.state, self.world.lease.slots
        s, rows, job = st.shards[0], st.rows[0], st.job[0]
        una, nxt, end = int(s["snd_una"]), int(s["snd_nxt"]), int(s["snd_max"])
        out = np.arange(una, nxt) & (slots - 1)
        out = out[~rows["acked"][out]]
        there = np.arange(max(0, end - slots), end)
        return (
            self.engine.epoch.token, una, nxt, end, int(s["flight"]), int(s["cwnd"]), int(s["highest"]),
            int(s["highest_alone"]), int(s["round_end"]), int(s["acked"]), int(s["overtaken"]), int(s["lost"]),
            rows["acked"].tobytes(), rows["taken"].tobytes(), rows["once"][out].tobytes(), rows["after"][out].tobytes(),
            rows["lost"][out].tobytes(), self.engine.rings[0][there & (int(job["rows"]) - 1)].tobytes(),
            int(job["sending"]), self.engine._next_block, self.finished, len(self.memory),
            *((int(st.operations[at]["item"]), int(st.operations[at]["sent"]), int(st.operations[at]["left"]))
              for at in range(int(job["oldest"]), int(job["loaded"]))),
            *(o.bytes_of[1:].tobytes() for o in self.engine.operations),
            *(memory.state for memory in self.memory),
        )  # fmt: skip


STILL = {
    "samples": 0, "backoff": 0, "timer_s": 0.0, "shortest_s": np.inf, "srtt_s": 0.0, "rttvar_s": 0.0,
    "rtt_min_s": np.inf, "counts": 0, "retransmitted": 0,
}  # fmt: skip
"""What only counts, or knows of time."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A state of a `Core`."""

    finished: int
    epoch: Epoch
    next_block: int
    loaded: int
    operations: tuple[Operation, ...]
    arrays: tuple[npt.NDArray[Any], ...]
    memory: tuple[tuple[Memory, Content], ...]
    key: Hashable
    snd_una: int
    snd_nxt: int
    snd_max: int
    deadline: float | None


class Rank:
    """A rank in some state."""

    def __init__(self, core: Core) -> None:
        self._core, self.saved = core, core.save()

    def __deepcopy__(self, memo: dict[int, Any]) -> Rank:
        new = object.__new__(Rank)
        new._core, new.saved = self._core, self.saved
        return new

    def step(self, message: Message) -> list[Message]:
        self._core.put_back(self.saved)
        sent = self._core.step(message)
        self.saved = self._core.save()
        return sent


# --- the search ---


class State(NamedTuple):
    """Of the whole world."""

    ranks: tuple[int, ...]
    switches: tuple[int, ...]
    there: int
    """A bit for each message that may arrive."""
    lost: int
    repeated: int
    restarts: int
    """How often that may still happen."""


class Move(NamedTuple):
    """What happens: to whom, or with which message."""

    what: str
    number: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has seen."""

    states: int
    transitions: int
    core_states: int
    """Of all cores together."""


class Search:
    """All that can happen to ``world`` (of one shard). `run` raises AssertionError with the way to what is wrong."""

    def __init__(
        self,
        world: World,
        fabric: Fabric | None = None,
        everlasting: bool = True,
        lost: int = 0,
        repeated: int = 0,
        restarts: int = 0,
    ) -> None:
        self.world, self._everlasting = world, everlasting
        self._post = Post()
        self._fabric: Fabric = fabric or OneSwitch()
        self._switches = [
            Table(switch, lambda switch: switch.key(), partial(self._step_switch, SWITCH - i), self._post)
            for i, switch in enumerate(self._fabric.make(world, 1, 0))
        ]
        shards = (ShardLease(("10.0.0.2", 0), world.lease),)
        self._ranks = [
            Table(Rank(Core(world, Epoch(1, JOB, 1, world.format, world.workers, rank, world.lanes, world.seed,
                                         shards, None, fabric is None), self._fabric.leaf_of(rank))),
                  lambda rank: rank.saved.key, lambda rank, message: rank.step(message), self._post)
            for rank in range(world.workers)
        ]  # fmt: skip
        self._first = State((0,) * world.workers, (0,) * len(self._switches), 0, lost, repeated, restarts)
        self._submit, self._timer = (
            [self._post.number(Message(rank, rank, None, what)) for rank in range(world.workers)]
            for what in ("submit", "timer")
        )

    def _step_switch(self, number: int, switch: Switch, message: Message) -> list[Message]:
        assert message.data is not None
        sent = [
            Message(to, number if to < 0 else to, data)
            for data, everyone in switch.receive(message.data, message.rank)
            for to in everyone
        ]
        for answer in sent:
            assert answer.data is not None
            if answer.to >= 0 and answer.data[KIND_AT] == Kind.RESULT:
                block = self._block(answer.data)
                right = answer.data[HEADER_BYTES:] == self.world.expected.down[block]
                assert right, f"the result of block {block} is not the sum"
        return sent

    def _block(self, data: bytes) -> int:
        slot, generation = PLACE.unpack_from(data, PREFIX_BYTES)
        return self.world.lease.block_at(slot, generation, 0)

    def run(self, most: int = 10_000_000) -> Found:
        """Walk everything; then make sure that no state is a dead end: from each, all sums can still be had."""
        numbers, ways, into = {self._first: 0}, [(-1, Move("", 0))], list[list[int]]([[]])
        todo, transitions, done = deque([self._first]), 0, list[int]()
        while todo:
            state = todo.popleft()
            here = numbers[state]
            try:
                if self._check(state):
                    done.append(here)
                moves = list(self._moves(state))
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self._way(ways, here)}") from error
            transitions += len(moves)
            for move, after in moves:
                there = numbers.setdefault(after, len(ways))
                if there == len(ways):
                    assert there < most, f"more than {most} states"
                    ways.append((here, move))
                    into.append([])
                    todo.append(after)
                if there != here:
                    into[there].append(here)
        self._check_no_dead_end(done, into, ways)
        cores = sum(len(table.states) for table in self._switches) + sum(len(table.states) for table in self._ranks)
        return Found(len(ways), transitions, cores)

    def _check_no_dead_end(self, done: list[int], into: list[list[int]], ways: list[tuple[int, Move]]) -> None:
        alive, todo = set(done), deque(done)
        while todo:
            for before in into[todo.popleft()]:
                if before not in alive:
                    alive.add(before)
                    todo.append(before)
        dead = next((number for number in range(len(ways)) if number not in alive), None)
        assert dead is None, f"from here nobody gets any further:\n{self._way(ways, dead or 0)}"

    def _check(self, state: State) -> bool:
        """The rules that hold in every state; whether all is done."""
        ranks = [table.states[number].saved for table, number in zip(self._ranks, state.ranks, strict=True)]
        lease, newest = self.world.lease, max(rank.snd_nxt for rank in ranks) - 1
        for rank in ranks:
            assert rank.snd_nxt <= rank.snd_una + lease.window, "a rank sends beyond its window"
            assert newest - lease.slots < rank.snd_una, "a slot is reused that somebody needs"
        return all(rank.finished == len(self.world.tensors) and rank.snd_una == rank.snd_max for rank in ranks)

    def _moves(self, state: State) -> Iterator[tuple[Move, State]]:
        ranks, switches, there, lost, repeated, restarts = state
        for rank, table in enumerate(self._ranks):
            core = table.states[ranks[rank]].saved
            if len(core.memory) < len(self.world.tensors):
                yield Move("submits", rank), self._at_rank(state, rank, self._submit[rank])
            if core.deadline is not None and not self._resends_are_there(state, rank):
                yield Move("has waited too long", rank), self._at_rank(state, rank, self._timer[rank])
        for number in _bits(there):
            if self._everlasting:
                yield Move("arrives", number), self._arrive(state, number)
                continue
            rest = there & ~(1 << number)
            if lost:
                yield Move("is lost", number), State(ranks, switches, rest, lost - 1, repeated, restarts)
            if repeated:
                again = State(ranks, switches, there, lost, repeated - 1, restarts)
                yield Move("arrives, and a copy is late", number), self._arrive(again, number)
            yield Move("arrives", number), self._arrive(State(ranks, switches, rest, lost, repeated, restarts), number)
        if restarts:
            yield Move("restarts", SWITCH), self._restart(state)

    def _resends_are_there(self, state: State, rank: int) -> bool:
        """Whether all that the rank would send again is under way already."""
        after, sent = self._ranks[rank].step(state.ranks[rank], self._timer[rank])
        return sent & ~state.there == 0 and after == state.ranks[rank]

    def _arrive(self, state: State, number: int) -> State:
        message = self._post.messages[number]
        if message.to >= 0:
            return self._at_rank(state, message.to, number)
        at, switches = SWITCH - message.to, state.switches
        switch, sent = self._switches[at].step(switches[at], number)
        return State(state.ranks, (*switches[:at], switch, *switches[at + 1 :]), state.there | sent, *state[3:])

    def _at_rank(self, state: State, rank: int, number: int) -> State:
        ranks = state.ranks
        core, sent = self._ranks[rank].step(ranks[rank], number)
        return State((*ranks[:rank], core, *ranks[rank + 1 :]), state.switches, state.there | sent, *state[3:])

    def _restart(self, state: State) -> State:
        """The switches lose all; all ranks join a new epoch. What is under way is of the old one, and does nothing more
        (which `check_old_epochs` shows)."""
        cores = [table.states[number].saved for table, number in zip(self._ranks, state.ranks, strict=True)]
        token, start = cores[0].epoch.token + 1, min(core.snd_una for core in cores)
        new = self._fabric.make(self.world, token, start)
        switches = tuple(table.number(switch) for table, switch in zip(self._switches, new, strict=True))
        after = State(state.ranks, switches, 0, state.lost, state.repeated, state.restarts - 1)
        for rank in range(self.world.workers):
            after = self._at_rank(after, rank, self._post.number(Message(rank, rank, None, f"resume {token} {start}")))
        return after

    def check_old_epochs(self) -> int:
        """After `run`: no core that is in a later epoch than a datagram is changed by it, or answers with more than the
        token that it knows. How many pairs were tried."""
        tried = 0
        for number, message in list(enumerate(self._post.messages)):
            if message.data is None:
                continue
            token = message.data[TOKEN_AT : TOKEN_AT + 4]
            for state, its in enumerate(self._tokens(message.to)):
                if int.from_bytes(token, "big") < its:
                    table: Table[Any] = self._core(message.to)
                    after, sent = table.step(state, number)
                    assert after == state
                    answers = [self._post.messages[answer].data or b"" for answer in _bits(sent)]
                    assert all(data[TOKEN_AT : TOKEN_AT + 4] == token for data in answers)
                    tried += 1
        return tried

    def _core(self, number: int) -> Table[Any]:
        return self._ranks[number] if number >= 0 else self._switches[SWITCH - number]

    def _tokens(self, core: int) -> list[int]:
        """Of each state of a core, the token."""
        if core < 0:
            return [switch.token for switch in self._switches[SWITCH - core].states]
        return [rank.saved.epoch.token for rank in self._ranks[core].states]

    # --- the way to a state, in words ---

    def _way(self, ways: list[tuple[int, Move]], number: int) -> str:
        steps = []
        while number > 0:
            number, move = ways[number]
            steps.append(f"{self._subject(move)} {move.what}")
        return "\n".join(reversed(steps))

    def _subject(self, move: Move) -> str:
        if move.number == SWITCH:
            return "the switch, or each of them,"
        if move.what.startswith(("submits", "has waited")):
            return f"rank {move.number}"
        message = self._post.messages[move.number]
        assert message.data is not None
        epoch = int.from_bytes(message.data[TOKEN_AT : TOKEN_AT + 4], "big")
        if message.to < 0 and message.rank < 0:
            slot, generation = PLACE.unpack_from(message.data, PREFIX_BYTES)
            of, kind = f"slot {slot} in generation {generation}", Kind(message.data[KIND_AT]).name.lower()
            return f"switch {message.rank}'s {kind} to {message.to} of {of} (epoch {epoch})"
        of = f"block {self._block(message.data)}"
        way = f"rank {message.rank}'s {of}" if message.to < 0 else f"the result of {of} for rank {message.to}"
        return f"{way} (epoch {epoch})"


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
