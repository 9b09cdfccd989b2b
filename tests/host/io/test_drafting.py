"""Drafts that are made while a rank waits: of what, how far ahead, and that they change nothing else."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from inagg_host import codec
from inagg_host.core import stream as streams
from inagg_host.core.filling import draft_ahead, fill
from inagg_host.core.schedule import COUNT, PHASE, PLACE, Phase
from inagg_host.core.stream import Stream
from inagg_wire.formats import FORMATS
from inagg_wire.layout import Op
from inagg_wire.scale import FloatType

from .rig import LANES, PATIENCE_S, World, begun, needs_port, values

pytestmark = needs_port

LARGE = 150 * LANES + 7
"""A tensor of three chunks."""


def draft_all(stream: Stream, ahead: bool) -> None:
    """All that there is room for, if ``ahead``."""
    while ahead and draft_ahead(stream):
        pass


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_values_are_read_once(shards: int, ahead: bool) -> None:
    """When their scales are found. What becomes of them later plays no part, whatever their blocks' numbers are."""
    engine, operation, stream = begun(LARGE, LANES, 512, shards, 777)
    mine, original = operation.values, operation.values.copy()
    sent, size, count = [], engine.size[Op.SUM], 1
    while count > 0:
        draft_all(stream, ahead)
        item = stream.sending.items[min(stream.n[streams.ITEM], len(operation.items) - 1)]
        count = fill(stream, 0.0)
        mine[: stream.n[streams.SCALED] * LANES] = 0
        if item[PHASE] == Phase.SCALE:
            continue
        for start, length, _ in stream.pieces[: stream.n[streams.PIECES] if count else 0].tolist():
            rows = stream.memory.ring.reshape(-1)[start : start + length].reshape(-1, size)
            sent += [bytes(row[streams.HEADER :]) for row in rows]
    assert count == 0
    table = operation.table[operation.table[:, PHASE] == Phase.VALUES]
    numbers = np.concatenate([item[PLACE] + np.arange(item[COUNT]) for item in table])
    want = np.zeros((len(numbers), engine.size[Op.SUM]), np.uint8)
    blocks = np.arange(len(numbers))
    codec.encode(operation.job, original, blocks, numbers, operation.agreed, None, want, blocks)
    assert len(sent) == len(numbers)
    assert sorted(sent) == sorted(bytes(row[streams.HEADER :]) for row in want)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_drafts_leave_what_may_be_sent_again(shards: int, ahead: bool) -> None:
    """The datagrams of the last blocks, as many as there are slots, stand in the ring while later ones are drafted."""
    slots = 8
    engine, operation, stream = begun(500 * 8, 8, slots, shards, 777)
    sent: list[list[bytes]] = [[] for _ in range(shards)]
    while stream.n[streams.SENDS]:
        op = Op.SUM if stream.sending.items[stream.n[streams.ITEM], PHASE] == Phase.VALUES else Op.MAX
        size = engine.size[op]
        assert fill(stream, 0.0) > 0
        draft_all(stream, ahead)
        for start, length, shard in stream.pieces[: stream.n[streams.PIECES]].tolist():
            piece = stream.memory.ring.reshape(-1)[start : start + length].tobytes()
            sent[shard] += [piece[at : at + size] for at in range(0, length, size)]
        for shard, (of_shard, ring) in enumerate(zip(sent, stream.memory.ring, strict=True)):
            end = int(stream.w[shard, streams.NEXT])
            assert end == 777 + len(of_shard)
            last = of_shard[-slots:]
            assert [
                bytes(ring[block % len(ring), : len(d)])
                for block, d in zip(range(end - len(last), end), last, strict=True)
            ] == last
        stream.w[:, streams.LOW], stream.w[:, streams.FLIGHT] = stream.w[:, streams.NEXT], 0  # all results come
    assert sum(map(len, sent)) == operation.blocks


def test_drafts_take_all_the_room_that_there_is() -> None:
    """Here a chunk has 8 blocks, as many as a block of scales has room for. As many rows of the ring as there are slots
    are for what may be sent again. Blocks 0 and 1 are scales, blocks 10, 19 and so on, too."""
    slots = 8
    _, operation, stream = begun(500 * 8, 8, slots, 1)
    rows = stream.memory.ring.shape[1]
    draft_all(stream, ahead=True)
    table = operation.table[operation.table[:, PHASE] == Phase.VALUES]
    numbers = np.concatenate([item[PLACE] + np.arange(item[COUNT]) for item in table])
    assert stream.n[streams.SCALED] == (numbers < rows - slots).sum() > 8 * 2
    fill(stream, 0.0)
    draft_all(stream, ahead=True)
    assert stream.n[streams.SCALED] == (numbers < rows - slots + stream.w[0, streams.NEXT]).sum()


@pytest.mark.parametrize("fmt", sorted(set(FORMATS) - {"nat8"}))
def test_other_formats_than_nat8_have_no_drafts(fmt: str) -> None:
    _, _, stream = begun(LARGE, LANES, 512, 1, fmt=fmt)
    assert not draft_ahead(stream)
    assert stream.n[streams.SCALED] == 0


def test_the_engine_takes_scales_that_the_loop_has_found() -> None:
    engine, operation, stream = begun(LARGE, LANES, 512, 1)
    draft_all(stream, ahead=True)
    engine.streaming.end(stream)
    assert operation.scaled == operation.job.blocks(LARGE)
    own = operation.own.tobytes()
    operation.values[:] = 0
    scales = next(engine.outgoing(0.0)).data[streams.HEADER :]
    chunk = operation.items[0].blocks
    assert scales[:chunk].tobytes() == own[:chunk]
    assert operation.own.tobytes() == own


def test_a_rank_that_waits_for_the_others_drafts(stack: ExitStack, runs: list[int]) -> None:
    """And the sums are what they are without that."""
    arrays = [[values(rank, LARGE)] for rank in range(2)]
    (calm,) = World(stack).sum(arrays, [FloatType.FLOAT32])
    world = World(stack)
    early, late = world.ranks
    early.submit(arrays[0][0])
    operation, give_up_s = None, time.monotonic() + PATIENCE_S
    while operation is None or operation.scaled < len(operation.own):
        assert time.monotonic() < give_up_s, "it waits and drafts nothing"
        seen = threading.Event()
        early.transport.post(seen.set)  # what the loop has done is known when it has ended
        assert seen.wait(PATIENCE_S)
        operation = early.engine.operations[0] if early.engine.operations else None
    late.submit(arrays[1][0])
    world.wait(1)
    assert arrays[0][0].tobytes() == arrays[1][0].tobytes() == calm
    assert runs
