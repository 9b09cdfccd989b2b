"""All interleavings of a small world, over the real engine and the real switch.

A core is deterministic: what it does depends on its state and on what it is given. So it is run once for every state
and input that come up (`Table`), and the interleavings, of which there are millions, are walked in those tables.

Two networks. An *everlasting* one never forgets: a datagram that was ever sent may arrive at any time and any number of
times, or never. That covers every loss, repetition, delay and reordering without a bound, and sending again is nothing
new in it. The other one *counts*: it has what is under way, once each, and a budget of losses and repetitions, so that
ranks must send again when their timers say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from inagg_host.core import Epoch, ShardLease
from inagg_host.core.headers import KIND_AT, TOKEN_AT
from inagg_wire.layout import HEADER_BYTES, Kind

from .fabrics import JOB, SWITCH, Fabric, OneSwitch, Switch
from .rank_states import Core, Rank
from .tables import Message, Post, Table
from .watch import PLACE, PREFIX_BYTES
from .world import World


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
