"""A rank of a search: a real engine that can be put back into a state that it was in."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host.core import Engine, Epoch, Operation
from inagg_host.core.operation import Request
from inagg_host.core.state import OPERATIONS

from .memory import Content, Memory
from .tables import Message
from .world import World


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
            self.finished, e.epoch, e._next_block, (e._loaded, e._collected), tuple(e.operations), arrays, memory,
            self._key(),
            int(st.shards["snd_una"][0]), int(st.shards["snd_nxt"][0]), int(st.shards["snd_max"][0]), e.deadline,
        )  # fmt: skip

    def put_back(self, saved: Saved) -> None:
        e = self.engine
        self.finished, e.epoch, e._next_block = saved.finished, saved.epoch, saved.next_block
        e._loaded, e._collected = saved.loaded
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
        self.engine.submit(
            Request(memory.values, memory.out, tensor.float_type, tensor.divisor, scatters=tensor.scatters), 0.0
        )

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
    loaded: tuple[int, int]
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
