"""The order of a tensor's blocks: the same on all ranks, each block once, scales before the values that need them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_host.core.schedule import (
    CHUNK_ELEMENTS,
    ITEM,
    Item,
    Phase,
    chunk_blocks,
    drafted_blocks,
    item_records,
    plan,
    scales_per_block,
    signature,
)
from inagg_wire.scale import FloatType

SCALE, REFINE, VALUES = Phase.SCALE, Phase.REFINE, Phase.VALUES

shapes = st.tuples(
    st.integers(1, 600), st.integers(1, 40), st.booleans()
)  # blocks of values, and of those as many as have their scales in one block, refined


def phases(items: tuple[Item, ...]) -> list[tuple[Phase, int, int]]:
    return [(item.phase, item.first, item.count) for item in items]


def test_scales_go_one_chunk_ahead_of_values() -> None:
    assert phases(plan(blocks=13, chunk=5, refined=False)) == [
        (SCALE, 0, 1), (SCALE, 5, 1), (VALUES, 0, 5), (SCALE, 10, 1), (VALUES, 5, 5), (VALUES, 10, 3),
    ]  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 5), st.integers(0, 100))
def test_how_far_drafts_are_ahead(chunks: int, chunk: int, shards: int, first: int) -> None:
    """Of the next block of a shard, when the scales of a chunk are sent; and with full chunks exactly so far."""
    items, furthest = plan(chunks * chunk, chunk, refined=False), 0
    for item in items:
        if item.phase is SCALE:
            next_, (drafted,) = first + item.start, (i for i in items if i.phase is VALUES and i.first == item.first)
            last = first + drafted.start + drafted.count - 1
            for shard in range(shards):
                next_of_shard = (next_ - shard + shards - 1) // shards
                furthest = max(furthest, (last - shard) // shards + 1 - next_of_shard)
    assert furthest <= drafted_blocks(chunk, shards)
    if chunks > 2 and shards == 1:
        assert furthest == 2 * chunk + 2


def test_refinements_go_between_and_scales_two_chunks_ahead() -> None:
    assert phases(plan(blocks=12, chunk=4, refined=True)) == [
        (SCALE, 0, 1), (SCALE, 4, 1), (REFINE, 0, 1), (SCALE, 8, 1), (REFINE, 4, 1), (VALUES, 0, 4), (REFINE, 8, 1),
        (VALUES, 4, 4), (VALUES, 8, 4),
    ]  # fmt: skip


def test_one_block_of_values_has_one_of_scales() -> None:
    assert phases(plan(blocks=1, chunk=1448, refined=False)) == [(SCALE, 0, 1), (VALUES, 0, 1)]


@given(shapes)
def test_all_ranks_number_alike(shape: tuple[int, int, bool]) -> None:
    """Nothing but the shape goes into it: no clock, no rank, no state."""
    assert plan(*shape) == plan(*shape)


@given(shapes)
def test_blocks_are_numbered_without_a_gap(shape: tuple[int, int, bool]) -> None:
    items = plan(*shape)
    assert items[0].start == 0
    assert all(after.start == before.start + before.count for before, after in pairwise(items))


@given(shapes)
def test_each_value_block_is_sent_once_and_in_order(shape: tuple[int, int, bool]) -> None:
    values = [item.first + i for item in plan(*shape) if item.phase is VALUES for i in range(item.count)]
    assert values == list(range(shape[0]))


@given(shapes)
def test_each_value_block_has_one_scale_and_one_refinement_if_any(shape: tuple[int, int, bool]) -> None:
    blocks, chunk, refined = shape
    for phase in (SCALE, REFINE):
        covered = [item.first + i for item in plan(*shape) if item.phase is phase for i in range(item.blocks)]
        assert covered == (list(range(blocks)) if phase is SCALE or refined else [])
    assert all(item.blocks <= chunk for item in plan(*shape))


@given(shapes)
def test_nothing_is_sent_before_what_it_needs(shape: tuple[int, int, bool]) -> None:
    seen = set()
    for item in plan(*shape):
        for phase in range(item.phase):
            assert (phase == REFINE and not shape[2]) or (phase, item.first) in seen
        seen.add((item.phase, item.first))


@given(shapes)
def test_records_say_what_items_do(shape: tuple[int, int, bool]) -> None:
    (records, _), chunk = item_records(*shape), shape[1]
    assert records.dtype == ITEM
    assert records.tolist() == [(i.phase, i.start, i.count, i.first, i.blocks, i.first // chunk) for i in plan(*shape)]


# --- signatures ---


def test_a_block_of_eight_scales_has_no_room_for_a_signature() -> None:
    assert [scales_per_block(lanes) for lanes in (8, 16, 1448)] == [8, 8, 1440]


@pytest.mark.parametrize(
    ("lanes", "scale_lanes", "want"),
    [
        pytest.param(1024, 1448, CHUNK_ELEMENTS // 1024, id="so many elements"),
        pytest.param(13056, 1448, CHUNK_ELEMENTS // 13056, id="whole blocks"),
        pytest.param(8, 8, 8, id="no more than fit into a block"),
        pytest.param(256, 1448, 1440, id="no more than fit into a block that is signed"),
    ],
)
def test_a_chunk_has_the_scales_of(lanes: int, scale_lanes: int, want: int) -> None:
    assert chunk_blocks(lanes, scale_lanes) == want


def agrees(maxima: bytes) -> bool:
    """As `receive` looks at them."""
    return all(a + b == 255 for a, b in zip(maxima[:4], maxima[4:], strict=True))


def test_equal_operations_agree() -> None:
    mine = signature(1000, FloatType.FLOAT32, 4, 0)
    assert agrees(bytes(map(max, zip(mine, mine, strict=True))))


@pytest.mark.parametrize(
    "other",
    [
        signature(1001, FloatType.FLOAT32, 4, 0),
        signature(1000, FloatType.FLOAT16, 4, 0),
        signature(1000, FloatType.FLOAT32, 1, 0),
        signature(1000, FloatType.FLOAT32, 4, 1),
    ],
)
def test_operations_that_differ_in_one_thing_do_not(other: npt.NDArray[np.uint8]) -> None:
    mine = signature(1000, FloatType.FLOAT32, 4, 0)
    assert not agrees(bytes(map(max, zip(mine, other, strict=True))))


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_two_sizes_agree_only_if_they_are_one(a: int, b: int) -> None:
    of = [signature(size, FloatType.FLOAT32, 1, 0).tobytes() for size in (a, b)]
    assert agrees(bytes(map(max, zip(*of, strict=True)))) == (of[0] == of[1])
