"""Sums of compressed vectors over all ranks: through the switch where it can sum them, else through a gather."""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from inagg_host.core.failure import SAME_ORDER
from inagg_host.errors import AllReduceError
from inagg_host.gone import NAMED_S, wait_for_word
from inagg_wire.formats import FORMATS
from inagg_wire.scale import FloatType, refine_byte, scale_byte, unit

from .base import Aggregation, Compressor, Floats, Indices, Mask, check
from .key import Key
from .memory import Memories, Memory, memory_of

if TYPE_CHECKING:
    from inagg_host.allreduce import AllReduce

log = logging.getLogger("inagg")

LENGTH_BYTES, TAG_BYTES = 4, 4
NOT_FINITE = (1 << 8 * LENGTH_BYTES) - 1
"""The length of a vector in a gather that has infinities or NaN, which no compressor takes."""

Bytes = npt.NDArray[np.uint8]
Gather = Callable[[bytes], list[bytes]]


@dataclass(slots=True)
class _Vector:
    """One vector on its way."""

    number: int
    memory: Memory
    key: Key
    entered: Floats
    union: Mask | None = None
    where: Indices | None = None
    scale: float | None = None

    @property
    def d(self) -> int:
        return self.entered.size


def _tag(call: int, vectors: Sequence[_Vector]) -> int:
    """A number, of 32 bits, that tells sums of the same size apart."""
    steps = [(vector.number, vector.key.step) for vector in vectors]
    return zlib.crc32(repr((call, steps)).encode())


class Exchange:
    """One rank's part in summing compressed vectors over all ranks of a job.

    ``seed`` (32 bits, the same on all ranks) is that of all noise but the switch's and its formats'. ``gather`` gives
    every rank's bytes, in the order of ranks: it is needed for what the switch cannot sum. All ranks must `begin` the
    same, in the same order, from one thread each.
    """

    def __init__(self, sums: AllReduce, rank: int, workers: int, seed: int, gather: Gather | None = None) -> None:
        self._sums, self._rank, self._workers, self._seed, self._gather = sums, rank, workers, seed, gather
        self.counts: Counter[str] = Counter()
        """Gathers, the bytes of this rank that went through them, and MAX rounds."""
        self._said: set[tuple[str, str]] = set()  # not of compressors: one's own dataclass may have no hash

    def reduce(self, compressor: Compressor, vectors: Mapping[int, Floats], memories: Memories) -> dict[int, Floats]:
        """The sums over all ranks of ``vectors``, by number; waits for them. See `begin`."""
        return self.begin(compressor, vectors, memories)()

    def begin(
        self, compressor: Compressor, vectors: Mapping[int, Floats], memories: Memories, call: int = 0
    ) -> Callable[[], dict[int, Floats]]:
        """Begin to sum ``vectors`` of one type, by number; what to call for the sums, which are the same on all ranks.
        ``call``: by which number the caller knows this on all ranks, if some may have failed to come so far before.

        Waits for what the ranks must agree on before the values, and for a gather. ``memories`` has, after the call for
        the sums, what is to be remembered: only of vectors whose sums are finite. Raises ValueError, and forgets and
        counts nothing, for a vector that is not as it was; and `AllReduceError` if another rank has begun something
        else.
        """
        types = sorted({str(x.dtype) for x in vectors.values()})
        if len(types) != 1:
            raise ValueError(f"vectors of types {types}: give at least one, and all of one type")
        # All ranks ask, as all must raise what a compressor raises: none is to wait for another that has raised.
        self._say_once("remark", compressor, compressor.remark(max(x.size for x in vectors.values())))
        for number, x in vectors.items():
            memory_of(memories, number, check(x).size, x.dtype).expect(x)
        prepared = [self._enter(compressor, number, x, memories) for number, x in vectors.items()]
        if compressor.aggregation is Aggregation.GATHER:
            return self._begin_gather(compressor, prepared, call)
        return self._begin_sum(compressor, prepared, call)

    def _say_once(self, kind: str, compressor: Compressor, text: str | None) -> None:
        """Log it once, on the first rank: it is the same everywhere."""
        key = kind, str(compressor)
        if text is not None and self._rank == 0 and key not in self._said:
            self._said.add(key)
            log.warning("%s %s", compressor, text)

    def _enter(self, compressor: Compressor, number: int, x: Floats, memories: Memories) -> _Vector:
        memory = memories[number]
        x = memory.fit(compressor, x)
        key = Key(self._seed, self._rank, memory.step, number)
        memory.step += 1
        return _Vector(number, memory, key, compressor.enter(x, memory.state))

    # --- through the switch ---

    def _begin_sum(
        self, compressor: Compressor, vectors: Sequence[_Vector], call: int
    ) -> Callable[[], dict[int, Floats]]:
        if compressor.aggregation is Aggregation.SPARSE_BLOCKS:
            self._unite(compressor, vectors)
        parts = []
        for vector in vectors:
            vector.where = compressor.where(vector.d, vector.key, vector.union)
            travels = vector.entered if vector.where is None else compressor.kept(vector.entered, vector.where)
            if not np.isfinite(vector.entered).all():
                if not travels.size:  # nobody will see it, so nobody must remember it
                    vector.entered = compressor.enter(np.zeros_like(vector.entered), vector.memory.state)
                travels = np.full_like(travels, np.nan)
            parts.append(travels)
        scales = [compressor.scale(part) for part in parts]
        if any(scale is not None for scale in scales):
            for vector, scale in zip(vectors, self._agree([scale or 0.0 for scale in scales]), strict=True):
                vector.scale = scale
        numbers = [
            compressor.to_sum(part, vector.key, vector.scale) if np.isfinite(part).all() else part
            for vector, part in zip(vectors, parts, strict=True)
        ]
        values = np.concatenate(numbers) if len(numbers) > 1 else np.ascontiguousarray(numbers[0])
        own = np.empty_like(values) if _remembers(compressor) else None
        tag = _tag(call, vectors)
        work = self._sums.submit(values, np.empty_like(values), contributed=own, tag=tag)
        bounds = np.cumsum([0, *(part.size for part in numbers)])

        def finish() -> dict[int, Floats]:
            sums, result = work.result(), {}
            for vector, start, end in zip(vectors, bounds, bounds[1:], strict=False):
                total = self._value(compressor, vector, sums[start:end])
                if own is not None:
                    mine = self._value(compressor, vector, own[start:end])
                    total = compressor.leave(vector.entered, mine, total, vector.memory.state)
                result[vector.number] = total
            return result

        return finish

    def _value(self, compressor: Compressor, vector: _Vector, sums: Floats) -> Floats:
        return compressor.spread(compressor.from_sum(sums, vector.scale), vector.where, vector.d)

    def _unite(self, compressor: Compressor, vectors: Sequence[_Vector]) -> None:
        """Agree on the blocks that some rank has."""
        masks = [compressor.blocks(vector.entered) for vector in vectors]
        assert all(mask is not None for mask in masks), f"{compressor} sums blocks and has none"
        union = self._max(np.concatenate([np.asarray(mask, np.uint8) for mask in masks]))
        at = 0
        for vector, mask in zip(vectors, masks, strict=True):
            assert mask is not None
            vector.union = union[at : at + mask.size] != 0
            at += mask.size

    def _agree(self, scales: Sequence[float]) -> list[float]:
        """The largest of each over all ranks, rounded up to 9 bits: NaN if one is not finite (or beyond 2**129).

        Two MAX rounds, of exponents and of mantissas, are how the format tern agrees on its scale: as it does.
        """
        tern, values = FORMATS["tern"], [np.array([scale]) for scale in scales]
        own = [scale_byte(tern, self._workers, value, FloatType.FLOAT64) for value in values]
        agreed = self._max(np.array(own, np.uint8)).tolist()
        refined = [
            refine_byte(tern, value, FloatType.FLOAT64, mine, all_of_them)
            for value, mine, all_of_them in zip(values, own, agreed, strict=True)
        ]
        refinements = self._max(np.array(refined, np.uint8)).tolist()
        units = [unit(tern, self._workers, scale, q) for scale, q in zip(agreed, refinements, strict=True)]
        return [math.nan if u is None else float(u) for u in units]

    def _max(self, values: Bytes) -> Bytes:
        self.counts["max-rounds"] += 1
        maxima: Bytes = self._sums.submit_max(values).result()
        return maxima

    # --- through a gather ---

    def _begin_gather(
        self, compressor: Compressor, vectors: Sequence[_Vector], call: int
    ) -> Callable[[], dict[int, Floats]]:
        if self._gather is None:
            raise ValueError(f"{compressor} cannot be summed in the switch, and there is no group to gather in")
        gathered = "cannot be summed in the switch: vectors are gathered by the inner group"
        self._say_once("gather", compressor, gathered)
        message = b"".join(self._frame(compressor, vector) for vector in vectors)
        self.counts["gathers"] += 1
        self.counts["gathered-bytes"] += len(message)
        tag = _tag(call, vectors).to_bytes(TAG_BYTES, "little")
        rows = self._gathered(self._gather, tag + message)
        for rank, row in enumerate(rows):
            if row[:TAG_BYTES] != tag:
                raise AllReduceError(
                    f"rank {rank} gathers something else than rank {self._rank}, which gathers {len(vectors)} vectors: "
                    f"{SAME_ORDER}"
                )
        return lambda: self._add_up(compressor, vectors, [row[TAG_BYTES:] for row in rows])

    def _gathered(self, gather: Gather, message: bytes) -> list[bytes]:
        """Return what all ranks gave. The inner group fails at once where a rank is gone, and names nobody; the switch
        does, a moment later. Raises `AllReduceError`."""
        try:
            return gather(message)
        except RuntimeError as error:
            failure = wait_for_word(lambda: self._sums.failure, time.monotonic() + NAMED_S)
            named = "" if failure is None else f"{failure}; then "
            raise AllReduceError(f"{named}gathering compressed vectors failed: {error}") from error

    def _frame(self, compressor: Compressor, vector: _Vector) -> bytes:
        if not np.isfinite(vector.entered).all():
            return NOT_FINITE.to_bytes(LENGTH_BYTES, "little")
        data = compressor.compress(vector.entered, vector.key)
        return len(data).to_bytes(LENGTH_BYTES, "little") + data

    def _add_up(self, compressor: Compressor, vectors: Sequence[_Vector], rows: Sequence[bytes]) -> dict[int, Floats]:
        """Sum what all ranks sent, in their order, so that the sums have the same bits everywhere."""
        result, at = {}, [0] * len(rows)
        for vector in vectors:
            total, own = np.zeros_like(vector.entered), vector.entered
            for rank, row in enumerate(rows):
                length = int.from_bytes(row[at[rank] : at[rank] + LENGTH_BYTES], "little")
                at[rank] += LENGTH_BYTES
                if length == NOT_FINITE:
                    total[:] = np.nan
                    continue
                values = compressor.decompress(row[at[rank] : at[rank] + length], vector.d, total.dtype)
                at[rank] += length
                total += values
                if rank == self._rank:
                    own = values
            result[vector.number] = compressor.leave(vector.entered, own, total, vector.memory.state)
        return result


def _remembers(compressor: Compressor) -> bool:
    """Whether it wants to know what this rank has contributed."""
    return type(compressor).leave is not Compressor.leave
