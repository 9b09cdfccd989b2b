"""The order of a tensor's blocks: the same on all ranks, each block once, scales before the values that need them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_host.core.schedule import (
    CHUNK_ELEMENTS,
    ITEM,
    Item,
    Phase,
    as_records,
    chunk_blocks,
    drafted_blocks,
    plan,
    scales_per_block,
    signature,
)
from inagg_wire.scale import FloatType

SCALE, REFINE, VALUES = Phase.SCALE, Phase.REFINE, Phase.VALUES

Shape = tuple[int, int, int, bool]
shapes = st.tuples(st.integers(1, 600), st.integers(1, 40), st.integers(1, 40), st.booleans())
"""Blocks of values, and of a chunk; scales in a block; refined."""


def phases(items: tuple[Item, ...]) -> list[tuple[Phase, int, int]]:
    return [(item.phase, item.first, item.count) for item in items]


def test_scales_go_one_chunk_ahead_of_values() -> None:
    assert phases(plan(blocks=13, chunk=5, scales=8, refined=False)) == [
        (SCALE, 0, 1), (SCALE, 5, 1), (VALUES, 0, 5), (SCALE, 10, 1), (VALUES, 5, 5), (VALUES, 10, 3),
    ]  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 100))
def test_how_far_drafts_are_ahead(chunks: int, chunk: int, scales: int, shards: int, first: int) -> None:
    """Of the next block of a shard, when the scales of a chunk are sent; and with full chunks exactly so far."""
    items, furthest = plan(chunks * chunk, chunk, scales, refined=False), 0
    for item in items:
        if item.phase is SCALE:
            next_, (drafted,) = first + item.start, (i for i in items if i.phase is VALUES and i.first == item.first)
            last = first + drafted.start + drafted.count - 1
            for shard in range(shards):
                next_of_shard = (next_ - shard + shards - 1) // shards
                furthest = max(furthest, (last - shard) // shards + 1 - next_of_shard)
    assert furthest <= drafted_blocks(chunk, shards)
    if chunks > 2 and shards == 1:
        assert furthest == 2 * (chunk + -(-chunk // scales))


def test_scales_that_do_not_fit_into_a_block_take_several() -> None:
    assert phases(plan(blocks=13, chunk=8, scales=3, refined=False)) == [
        (SCALE, 0, 3), (SCALE, 8, 2), (VALUES, 0, 8), (VALUES, 8, 5),
    ]  # fmt: skip


def test_refinements_go_between_and_scales_two_chunks_ahead() -> None:
    assert phases(plan(blocks=12, chunk=4, scales=4, refined=True)) == [
        (SCALE, 0, 1), (SCALE, 4, 1), (REFINE, 0, 1), (SCALE, 8, 1), (REFINE, 4, 1), (VALUES, 0, 4), (REFINE, 8, 1),
        (VALUES, 4, 4), (VALUES, 8, 4),
    ]  # fmt: skip


def test_one_block_of_values_has_one_of_scales() -> None:
    assert phases(plan(blocks=1, chunk=1448, scales=1440, refined=False)) == [(SCALE, 0, 1), (VALUES, 0, 1)]


@given(shapes)
def test_all_ranks_number_alike(shape: Shape) -> None:
    """Nothing but the shape goes into it: no clock, no rank, no state."""
    assert plan(*shape) == plan(*shape)


@given(shapes)
def test_blocks_are_numbered_without_a_gap(shape: Shape) -> None:
    items = plan(*shape)
    assert items[0].start == 0
    assert all(after.start == before.start + before.count for before, after in pairwise(items))


@given(shapes)
def test_each_value_block_is_sent_once_and_in_order(shape: Shape) -> None:
    values = [item.first + i for item in plan(*shape) if item.phase is VALUES for i in range(item.count)]
    assert values == list(range(shape[0]))


@given(shapes)
def test_each_value_block_has_one_scale_and_one_refinement_if_any(shape: Shape) -> None:
    blocks, chunk, scales, refined = shape
    for phase in (SCALE, REFINE):
        of_phase = [item for item in plan(*shape) if item.phase is phase]
        covered = [item.first + i for item in of_phase for i in range(item.blocks)]
        assert covered == (list(range(blocks)) if phase is SCALE or refined else [])
        assert all(scales * (item.count - 1) < item.blocks <= scales * item.count for item in of_phase)
    assert all(item.blocks <= chunk for item in plan(*shape))


@given(shapes)
def test_nothing_is_sent_before_what_it_needs(shape: Shape) -> None:
    seen = set()
    for item in plan(*shape):
        for phase in range(item.phase):
            assert (phase == REFINE and not shape[3]) or (phase, item.first) in seen
        seen.add((item.phase, item.first))


@given(shapes)
def test_records_say_what_items_do(shape: Shape) -> None:
    chunk = shape[1]
    records = as_records(plan(*shape), chunk)
    assert records.dtype == ITEM
    assert records.tolist() == [(i.phase, i.start, i.count, i.first, i.blocks, i.first // chunk) for i in plan(*shape)]


# --- signatures ---


def test_a_block_of_eight_scales_has_no_room_for_a_signature() -> None:
    assert [scales_per_block(lanes) for lanes in (8, 16, 1448)] == [8, 8, 1440]


@pytest.mark.parametrize(
    ("lanes", "scales", "window", "want"),
    [
        pytest.param(1024, 1440, 512, CHUNK_ELEMENTS // 1024, id="so many elements"),
        pytest.param(13056, 1440, 64, CHUNK_ELEMENTS // 13056, id="whole blocks"),
        pytest.param(8, 8, 2, 8, id="a full block of scales, if the window is smaller"),
        pytest.param(256, 1440, 512, 1440, id="a full block of scales that is signed"),
        pytest.param(32, 24, 512, 22 * 24, id="full blocks of scales, at least a window"),
        pytest.param(32, 24, 1 << 20, CHUNK_ELEMENTS // 32, id="so many elements, if the window is larger"),
    ],
)
def test_a_chunk_is_of(lanes: int, scales: int, window: int, want: int) -> None:
    assert chunk_blocks(lanes, scales, window) == want


@given(st.integers(1, 4096), st.integers(1, 1440), st.integers(1, 1 << 14))
def test_what_is_between_scales_and_their_values_fills_the_window(lanes: int, scales: int, window: int) -> None:
    """Unless so many blocks have more elements than a chunk may have."""
    assert chunk_blocks(lanes, scales, window) >= min(window, CHUNK_ELEMENTS // lanes)


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
def test_operations_that_differ_in_one_thing_do_not(other: bytes) -> None:
    mine = signature(1000, FloatType.FLOAT32, 4, 0)
    assert not agrees(bytes(map(max, zip(mine, other, strict=True))))


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_two_sizes_agree_only_if_they_are_one(a: int, b: int) -> None:
    of = [signature(size, FloatType.FLOAT32, 1, 0) for size in (a, b)]
    assert agrees(bytes(map(max, zip(*of, strict=True)))) == (of[0] == of[1])
