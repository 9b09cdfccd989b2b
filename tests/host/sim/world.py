"""What a run is about: a job, the tensors of its ranks, and what must come of them. All drawn from one number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from inagg_host.core.schedule import Item, chunk_blocks, plan, scales_per_block
from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.layout import GENERATION_MAX
from inagg_wire.scale import Floats, FloatType
from inagg_wire.slots import Lease

from .oracle import Below, Expected, expect

LANES_MAX = 64
RANKS = (2, 2, 2, 3, 3, 4, 5, 6, 7, 8)
WINDOWS = (1, 1, 2, 2, 4, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One all-reduce, or, in more than one of ``pieces``, one for each rank, a reduce-scatter: ``values[rank]`` are 1-D
    arrays of ``float_type``; ``first``: its first block in the job."""

    float_type: FloatType
    values: tuple[Floats, ...]
    in_place: bool
    divisor: int
    first: int
    items: tuple[Item, ...]
    pieces: int = 1

    @property
    def scatters(self) -> bool:
        return self.pieces > 1

    def value_blocks(self, lanes: int) -> int:
        return self.pieces * -(-self.elements // self.pieces // lanes)

    @property
    def elements(self) -> int:
        return self.values[0].size

    @property
    def blocks(self) -> int:
        return self.items[-1].start + self.items[-1].count


@dataclass(frozen=True, slots=True)
class World:
    """A job and its tensors. ``first``: the block at which it begins, a multiple of ``shards``."""

    number: int
    format: JobFormat
    workers: int
    lanes: int
    window: int
    shards: int
    lease: Lease
    """On each shard."""
    seed: int
    first: int
    tensors: tuple[Tensor, ...]
    expected: Expected

    @property
    def blocks(self) -> int:
        return sum(tensor.blocks for tensor in self.tensors)

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{t.elements} {t.float_type.name.lower()}{' in place' * t.in_place}{' scattered' * t.scatters}"
            for t in self.tensors
        )
        return (
            f"world {self.number}: {self.format.name}, {self.workers} ranks, {self.shards} shards, {self.lanes} lanes, "
            f"window {self.window}, {self.blocks} blocks from {self.first}, tensors of {sizes}"
        )


def make_world(
    number: int,
    fmt: JobFormat,
    workers: int,
    lanes: int,
    window: int,
    shards: int,
    tensors: list[tuple[int, FloatType]],
    first: int = 0,
    below: Below = 0,
    scattered: Sequence[int] = (),
) -> World:
    """A world of ``tensors``, by elements and type, drawn from ``number``; those numbers that are ``scattered`` have a
    piece for each rank. ``below``: see `expect`."""
    rng = np.random.default_rng(number)
    seed, block, made = int(rng.integers(1 << 32)), first, []
    scales = scales_per_block(fmt.scale_lanes(lanes))
    lease = Lease(2 * window * int(rng.integers(2)), 2 * window)
    for t, (elements, float_type) in enumerate(tensors):
        pieces = workers if t in scattered else 1
        piece = -(-elements // pieces)
        elements = pieces * piece
        blocks = pieces * -(-piece // lanes)
        items = plan(blocks, chunk_blocks(lanes, scales, window * shards), scales, fmt.refined)
        values = draw_values(rng, workers, elements, float_type)
        divisor = workers if rng.random() < 0.3 else 1
        made.append(Tensor(float_type, values, bool(rng.random() < 0.5), divisor, block, items, pieces))
        block += made[-1].blocks
    flat = World(number, fmt, workers, lanes, window, shards, lease, seed, first, tuple(made), Expected({}, {}, []))
    return with_tree(flat, below)


def with_tree(world: World, below: Below) -> World:
    """The same through a tree, as far as what must come of it depends on that."""
    w, expected = world, Expected({}, {}, [])
    for tensor in w.tensors:
        expect(
            expected, w.format, w.lanes, w.seed, w.shards, w.lease, tensor.float_type, tensor.values, tensor.divisor,
            tensor.first, tensor.items, below, tensor.pieces,
        )  # fmt: skip
    return replace(world, expected=expected)


@lru_cache(maxsize=64)
def draw_world(number: int, blocks: int = 24) -> World:
    """World ``number``, of about ``blocks`` blocks at most."""
    rng = random.Random(number)
    fmt = FORMATS[rng.choice(sorted(FORMATS))]
    lanes = rng.randrange(fmt.min_lanes, LANES_MAX + 1, 8)
    window, shards = rng.choice(WINDOWS), rng.choice((1, 1, 2, 3))
    budget, tensors = max(2, int(blocks * rng.random())), []
    while budget > 0:
        # one element, whole blocks, or anything
        of_blocks = rng.randint(1, budget)
        elements = rng.choice((1, of_blocks * lanes, rng.randint(1, of_blocks * lanes)))
        tensors.append((elements, rng.choice(list(FloatType))))
        budget -= 2 + elements // lanes
    first = 0
    if rng.random() < 0.08:  # the generations run out after some blocks
        first = shards * (2 * window * GENERATION_MAX - rng.randint(1, blocks))
    workers = rng.choice(RANKS)
    scattered = [t for t in range(len(tensors)) if random.Random((number << 8) + t).random() < 0.3]
    return make_world(number, fmt, workers, lanes, window, shards, tensors, max(first, 0), scattered=scattered)


def draw_values(rng: np.random.Generator, workers: int, elements: int, float_type: FloatType) -> tuple[Floats, ...]:
    """Values of all ranks: of many magnitudes, some zero, and now and then one that is not finite."""
    exact = rng.normal(size=(workers, elements)) * np.exp2(rng.integers(-30, 10))
    exact[rng.random((workers, elements)) < 0.1] = 0.0
    exact *= np.exp2(-rng.integers(0, 12, elements))
    if rng.random() < 0.1:
        exact[rng.integers(workers), rng.integers(elements)] = rng.choice([np.nan, np.inf, -np.inf])
    if rng.random() < 0.1:
        exact[:] = 0.0
    return tuple(narrowed(row, float_type) for row in exact)


def narrowed(exact: npt.NDArray[np.float64], float_type: FloatType) -> Floats:
    """To the type, towards zero for bfloat16; what does not fit becomes infinite."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if float_type is FloatType.BFLOAT16:
            bits = exact.astype(np.float32).view(np.uint32)
            return np.where(np.isnan(exact), 0x7FC0, bits >> np.uint32(16)).astype(np.uint16)
        return exact.astype(float_type.dtype)
