"""Drafts that are made while a rank waits: of what, how far ahead, and that they change nothing else."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import pytest

from inagg_host.core import Engine, Operation
from inagg_host.core.headers import HEADER
from inagg_host.core.operation import Request
from inagg_host.core.schedule import SIGNATURE_LANES, Phase
from inagg_testbed.kernel_calls import Call
from inagg_wire.formats import FORMATS
from inagg_wire.layout import Encoding, Op
from inagg_wire.scale import FloatType

from .rig import LANES, PATIENCE_S, Array, World, begun, needs_port, values

LARGE = 150 * LANES + 7
"""A tensor of three chunks."""


def draft_all(engine: Engine, ahead: bool = True) -> None:
    """All that there is room for, if ``ahead``."""
    while ahead and engine.draft_ahead():
        pass


def scaled(engine: Engine) -> int:
    """How many blocks of the first operation have their scales."""
    return int(engine.state.operations["scaled"][0])


def numbers_of_values(operation: Operation) -> Array:
    """Blocks of values, by the operation's numbering."""
    return np.concatenate([i.start + np.arange(i.count) for i in operation.shape.items if i.phase == Phase.VALUES])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_values_are_read_once(shards: int, ahead: bool) -> None:
    """When their scales are found. What becomes of them later plays no part, whatever their blocks' numbers are."""
    engine, operation = begun(LARGE, LANES, 512, shards, 777)
    mine, original = operation.request.values, operation.request.values.copy()
    sent: list[bytes] = []
    while True:
        draft_all(engine, ahead)
        if not (batch := engine.next_batch(0.0)):
            break
        mine[: scaled(engine) * LANES] = 0
        shard, block = batch[0].shard, engine.state.shards["snd_nxt"][batch[0].shard] - 1
        if engine.state.rows["op"][shard, block % 512] == Op.SUM:
            sent += [bytes(row[HEADER:]) for out in batch for row in out.data.reshape(-1, out.size)]
    numbers = numbers_of_values(operation) + operation.first_block
    want = np.zeros((len(numbers), int(engine.state.job["size"][0, Op.SUM])), np.uint8)
    call = Call(operation.shape.job, original, operation.agreed, ring=want)
    for block, number in enumerate(numbers.tolist()):
        call.encode(block, number, 1, block)
    assert len(sent) == len(numbers)
    assert sorted(sent) == sorted(bytes(row[HEADER:]) for row in want)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_drafts_leave_what_may_be_sent_again(shards: int, ahead: bool) -> None:
    """The datagrams of the last blocks, as many as there are slots, stand in the ring while later ones are drafted."""
    slots = 8
    engine, operation = begun(500 * 8, 8, slots, shards, 777)
    sent: list[list[bytes]] = [[] for _ in range(shards)]
    records = engine.state.shards
    while batch := engine.next_batch(0.0):
        for out in batch:
            sent[out.shard] += [bytes(datagram) for datagram in out.data.reshape(-1, out.size)]
        draft_all(engine, ahead)
        for record, of_shard, ring in zip(records, sent, engine.rings, strict=True):
            end, last = int(record["snd_nxt"]), of_shard[-slots:]
            assert end == 777 + len(of_shard)
            assert [
                bytes(ring[block % len(ring), : len(d)])
                for block, d in zip(range(end - len(last), end), last, strict=True)
            ] == last
        records["snd_una"], records["flight"] = records["snd_nxt"], 0  # all results come
    assert sum(map(len, sent)) == operation.shape.blocks


def test_drafts_take_all_the_room_that_there_is() -> None:
    """Here a chunk has 8 blocks, as many as a block of scales has room for. As many rows of the ring as there are slots
    are for what may be sent again. Blocks 0 and 1 are scales, blocks 10, 19 and so on, too."""
    slots = 8
    engine, operation = begun(500 * 8, 8, slots, 1)
    rows, numbers = engine.rings.shape[1], numbers_of_values(operation)
    draft_all(engine)
    assert scaled(engine) == (numbers < rows - slots).sum() > 8 * 2
    engine.next_batch(0.0)
    draft_all(engine)
    assert scaled(engine) == (numbers < rows - slots + engine.state.shards["snd_nxt"][0]).sum()


def test_drafts_go_on_into_the_next_operation() -> None:
    """While the first one waits for its last results."""
    engine, first = begun(3 * LANES, LANES, 512, 1)
    later = values(2, 3 * LANES)
    engine.submit(Request(later, later, FloatType.FLOAT32), 0.0)
    for _ in engine.outgoing(0.0):
        pass
    draft_all(engine)
    assert engine.state.operations["scaled"][:2].tolist() == [3, 3]
    assert engine.operations[0] is first


@pytest.mark.parametrize("fmt", sorted(name for name in FORMATS if FORMATS[name].up is not Encoding.NAT8))
def test_other_codes_than_nat8_have_no_drafts(fmt: str) -> None:
    engine, _ = begun(LARGE, LANES, 512, 1, fmt=fmt)
    assert not engine.draft_ahead()
    assert scaled(engine) == 0


def test_scales_are_those_of_the_values_when_they_were_drafted() -> None:
    engine, operation = begun(LARGE, LANES, 512, 1)
    draft_all(engine)
    assert scaled(engine) == operation.shape.job.blocks(LARGE)
    own = operation.bytes_of[0].tobytes()
    operation.request.values[:] = 0
    first = next(engine.outgoing(0.0))
    scales = first.data.reshape(-1, first.size)[:, HEADER:-SIGNATURE_LANES].tobytes()
    chunk = operation.shape.items[0].blocks
    assert scales[:chunk] == own[:chunk]
    assert operation.bytes_of[0].tobytes() == own


@needs_port
def test_a_rank_that_waits_for_the_others_drafts(stack: ExitStack, runs: list[int]) -> None:
    """And the sums are what they are without that."""
    arrays = [[values(rank, LARGE)] for rank in range(2)]
    (calm,) = World(stack).sum(arrays, [FloatType.FLOAT32])
    world = World(stack)
    early, late = world.ranks
    early.submit(arrays[0][0])
    give_up_s = time.monotonic() + PATIENCE_S
    while scaled(early.engine) < -(-LARGE // LANES):
        assert time.monotonic() < give_up_s, "it waits and drafts nothing"
        time.sleep(0.001)
    late.submit(arrays[1][0])
    world.wait(1)
    assert arrays[0][0].tobytes() == arrays[1][0].tobytes() == calm
    assert runs
