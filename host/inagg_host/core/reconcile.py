"""Reconciliation after the network has broken: all ranks come to the same set of finished blocks, to go on without it.

Ranks may differ by up to P blocks on each shard, and an in-place all-reduce has overwritten the values of blocks whose
results came. So a rank keeps its last results (`State.kept`), and those that others lack are passed on. Then every
block is finished on all ranks or on none, and of those on none all ranks still have their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec.msgpack import decode, encode

from .engine import Engine
from .operation import Operation
from .receive import retire, take
from .schedule import Phase
from .state import RESULTS_MOST, State

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class InnerGroup(Protocol):
    """Another way between the ranks: blocking collectives, called in the same order on all of them, on one thread."""

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, of any length, in the order of ranks."""
        ...

    def broadcast(self, data: Bytes, source: int) -> None:
        """Rank ``source``'s 1-D uint8 array to all, in place; of the same size on all."""
        ...

    def all_reduce(self, values: npt.NDArray[Any]) -> None:
        """Sum a contiguous 1-D float32 or float64 array over all ranks, in place."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """The blocks of one shard that are finished on one rank."""

    oldest: int
    recent: frozenset[int]

    def __contains__(self, block: int) -> bool:
        return block < self.oldest or block in self.recent


def salvage(engine: Engine, group: InnerGroup) -> list[Operation]:
    """Bring all ranks to the same finished blocks; the operations that this finishes here. For all ranks to call."""
    rank, state = engine.epoch.rank, engine.state
    answers = group.gather(encode([_recent(state, shard) for shard in range(len(state.shards))]))
    ranks = [[Finished(a[0], frozenset(a[1:])) for a in decode(answer, type=list[list[int]])] for answer in answers]
    finished: list[Operation] = []
    for shard in range(len(state.shards)):
        kept, rows = state.kept[shard], state.rows[shard]
        mask = int(state.shards[shard]["slots"]) - 1
        done = [of_rank[shard] for of_rank in ranks]
        wanted = {b for some in done for b in some.recent if not all(b in other for other in done)}
        for source, has in enumerate(done):
            blocks = np.array(sorted(wanted & has.recent), np.int64)
            if not blocks.size:
                continue
            wanted -= has.recent
            data = kept[blocks & mask] if source == rank else np.zeros((blocks.size, kept.shape[1]), np.uint8)
            group.broadcast(data.reshape(-1), source)
            missing = np.flatnonzero([int(block) not in done[rank] for block in blocks])
            if missing.size:
                rows["taken"][blocks[missing] & mask] = True
                _take(engine, shard, data.reshape(-1), kept.shape[1], missing, blocks[missing])
                finished += engine.finished()
    return finished


def agree(group: InnerGroup, ranks: int, ready: bool, signature: bytes) -> int | None:
    """How many of the ``ranks`` are ready, or None if not all have the same ``signature``, of eight bytes. For all
    ranks to call; the answer is the same on all.

    It takes one sum. By Cauchy and Schwarz, n numbers are equal if and only if n times the sum of their squares is the
    square of their sum. The signature is four numbers of 16 bits, so with up to 2**21 ranks float64 holds both exactly.
    """
    numbers = np.frombuffer(signature, np.uint16).astype(np.float64)
    told = np.concatenate([[float(ready)], numbers, numbers**2])
    group.all_reduce(told)
    count, *sums = map(int, told)
    alike = (ranks * squares == total**2 for total, squares in zip(sums[:4], sums[4:], strict=True))
    return count if all(alike) else None


def _recent(state: State, shard: int) -> list[int]:
    """The oldest block of a shard whose row is not used again, then the finished ones from there on."""
    s, slots = state.shards[shard], int(state.shards[shard]["slots"])
    oldest = max(int(s["first"]), int(s["snd_max"]) - slots)
    blocks = np.arange(oldest, int(s["snd_max"]))
    return [oldest, *blocks[state.rows[shard]["taken"][blocks & (slots - 1)]].tolist()]


def _take(engine: Engine, shard: int, data: Bytes, size: int, places: Integers, blocks: Integers) -> None:
    """Take the results of ``blocks``, which stand at ``places`` of ``data``, into the sums."""
    state = engine.state
    for start in range(0, blocks.size, RESULTS_MOST):
        part = slice(start, start + RESULTS_MOST)
        count = blocks[part].size
        state.places[:count], state.blocks[:count] = places[part], blocks[part]
        taken = 0
        while taken < count:
            taken = take(state, shard, data, size, taken, count)
    retire(state)
    engine.check()


def unfinished(engine: Engine) -> list[tuple[Operation, npt.NDArray[np.bool_]]]:
    """The operations that are left, and which of their value blocks have no sums yet."""
    state, shards = engine.state, len(engine.state.shards)
    left = []
    for operation in engine.operations:
        pending = np.ones(operation.agreed.size, np.bool_)
        for item in operation.shape.items:
            if item.phase is Phase.VALUES:
                numbers = operation.first_block + item.start + np.arange(item.count)
                for shard, s in enumerate(state.shards):
                    mine = np.flatnonzero(numbers % shards == shard)
                    blocks, slots, end = numbers[mine] // shards, int(s["slots"]), int(s["snd_max"])
                    taken = (blocks < end) & state.rows[shard]["taken"][blocks & (slots - 1)]
                    pending[item.first + mine] = ~(taken | (blocks < end - slots))
        left.append((operation, pending))
    return left
