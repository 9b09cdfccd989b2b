"""Values that stream in a compiled loop: every sum has the bits that it has without the loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inagg_host.core.recovery import mark_overtaken
from inagg_host.io import phases
from inagg_link.base import Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_wire.formats import FORMATS
from inagg_wire.layout import Op
from inagg_wire.scale import FloatType

from .rig import LANES, Array, World, as_it_is, begun, either_loop, needs_port, portless, values

pytestmark = needs_port

SIZES = (1, 20_000, 700, 100 * LANES, 3, 33_333, 64 * LANES)
LARGE = 150 * LANES + 7
SUMS_MOST = 50


def both_ways(
    stack: ExitStack,
    runs: list[int],
    arrays: Sequence[Sequence[Array]],
    types: Sequence[FloatType],
    at_once: bool = True,
    divisor: int = 1,
    **options: Any,
) -> list[bytes]:
    """Sum in the loop and without it. The sums, which are the same; also, how much was sent."""
    outcomes = []
    for wrap in (as_it_is, portless):
        runs.clear()
        world = World(stack, len(arrays), wrap=wrap, **options)
        sums = world.sum(arrays, types, at_once, divisor)
        assert bool(runs) == (wrap is as_it_is), "the loop is used if it can be"
        engines = [rank.engine for rank in world.ranks]
        outcomes.append((sums, [engine.positions for engine in engines], [engine.idle for engine in engines]))
    assert outcomes[0] == outcomes[1]
    return outcomes[0][0]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_every_format_sums_every_type(stack: ExitStack, runs: list[int], fmt: str, at_once: bool) -> None:
    types = list(FloatType)
    arrays = [[values(rank, LARGE, float_type) for float_type in types] for rank in range(2)]
    both_ways(stack, runs, arrays, types, at_once, fmt=fmt)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("fmt", ["nat8", "nat4-nat8", "dith8"])
def test_any_number_of_ranks(stack: ExitStack, runs: list[int], fmt: str, workers: int) -> None:
    arrays = [[values(rank, LARGE)] * 2 for rank in range(workers)]
    both_ways(stack, runs, arrays, [FloatType.FLOAT32] * 2, fmt=fmt)


@pytest.mark.parametrize("fmt", ["nat8", "dith8"])
def test_tensors_of_many_sizes_at_once(stack: ExitStack, runs: list[int], fmt: str) -> None:
    arrays = [[values(rank, size) for size in SIZES] for rank in range(2)]
    both_ways(stack, runs, arrays, [FloatType.FLOAT32] * len(SIZES), fmt=fmt)


@pytest.mark.parametrize("lanes", [8, 16, 256, 1024])
def test_blocks_of_any_size(stack: ExitStack, runs: list[int], lanes: int) -> None:
    arrays = [[values(rank, 200 * lanes + 1)] for rank in range(2)]
    both_ways(stack, runs, arrays, [FloatType.FLOAT32], lanes=lanes)


@pytest.mark.parametrize("window", [1, 2, 4, 512])
def test_windows_of_any_size(stack: ExitStack, runs: list[int], window: int) -> None:
    arrays = [[values(rank, LARGE)] for rank in range(2)]
    both_ways(stack, runs, arrays, [FloatType.FLOAT32], window=window)


@pytest.mark.parametrize("shards", [2, 3, 5])
@pytest.mark.parametrize("fmt", ["nat8", "nat4-nat8", "dith8"])
def test_any_number_of_shards(stack: ExitStack, runs: list[int], fmt: str, shards: int) -> None:
    arrays = [[values(rank, size) for size in SIZES] for rank in range(2)]
    both_ways(stack, runs, arrays, [FloatType.FLOAT32] * len(SIZES), fmt=fmt, shards=shards)


@pytest.mark.parametrize("window", [1, 2, 16])
def test_windows_of_several_shards(stack: ExitStack, runs: list[int], window: int) -> None:
    arrays = [[values(rank, LARGE), values(rank, 11 * LANES)] for rank in range(2)]
    both_ways(stack, runs, arrays, [FloatType.FLOAT32] * 2, shards=3, window=window)


def test_a_mean(stack: ExitStack, runs: list[int]) -> None:
    both_ways(stack, runs, [[values(rank, LARGE)] for rank in range(2)], [FloatType.FLOAT32], divisor=2)


@pytest.mark.parametrize("at", [50, 5000, 9000], ids=["first chunk", "second", "third, found ahead"])
def test_values_that_are_not_finite(stack: ExitStack, runs: list[int], at: int) -> None:
    arrays = [[values(rank, LARGE)] for rank in range(2)]
    arrays[1][0][at] = np.inf
    (sums,) = both_ways(stack, runs, arrays, [FloatType.FLOAT32])
    block = slice(at // LANES * LANES, at // LANES * LANES + LANES)
    nan = np.isnan(np.frombuffer(sums, np.float32))
    assert nan[block].all()
    assert nan.sum() == LANES


def test_sums_are_what_they_should_be(stack: ExitStack, runs: list[int]) -> None:
    """Powers of two, which nat8 carries as they are."""
    exact = np.exp2(np.arange(LARGE) % 8).astype(np.float32)
    (sums,) = both_ways(stack, runs, [[exact]] * 2, [FloatType.FLOAT32])
    assert (np.frombuffer(sums, np.float32) == 2 * exact).all()


# --- losses ---


def losing(loss: float, links: list[FaultLink], in_loop: bool = True) -> Any:
    def wrap(rank: int, link: Link) -> Link:
        links.append(FaultLink(link, Faults(drop=loss), seed=rank))
        return links[-1] if in_loop else portless(rank, links[-1])

    return wrap


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("fmt", ["nat8", "dith8"])
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_losses_change_no_bit(stack: ExitStack, runs: list[int], loss: float, fmt: str, shards: int) -> None:
    arrays = [[values(rank, size) for size in SIZES] for rank in range(2)]
    types = [FloatType.FLOAT32] * len(SIZES)
    calm = World(stack, fmt=fmt, wrap=portless, shards=shards).sum(arrays, types)
    links: list[FaultLink] = []
    world = World(stack, fmt=fmt, wrap=losing(loss, links), shards=shards)
    assert world.sum(arrays, types) == calm
    assert runs
    for rank, link in zip(world.ranks, links, strict=True):
        rank.transport.close()  # from here on only this thread uses its link
        for model in (link.sending, link.receiving):
            c = model.counters
            assert c.dropped > 0
            assert c.entered == c.left + c.dropped
    assert sum(rank.counters.resent for rank in world.ranks) > 0


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_lost_scales_are_sent_again_by_the_loop_as_values_are(limit: int) -> None:
    """In their order, batch by batch of one size."""
    engine, _ = begun(300 * 2048, 2048, 512, 1)
    for _ in engine.outgoing(0.0):
        pass
    ring, rows, shard = engine.rings[0], engine.state.rows[0], engine.state.shards[0]
    out = int(shard["snd_nxt"])
    assert np.flatnonzero(rows["op"][:out] == Op.MAX).tolist() == [0, 1]
    lost = [0, 1, 5, 6, 7, out - 20]
    rows["acked"][:out] = True
    rows["acked"][lost] = False
    shard["highest"] = out - 1
    engine.state.job["batch"] = limit
    mark_overtaken(engine.state, 0)
    sent = []
    while shard["lost"]:
        (batch,) = engine.next_batch(0.0)
        assert batch.data.size <= limit * batch.size
        sent += [bytes(row) for row in batch.data.reshape(-1, batch.size)]
    assert sent == [bytes(ring[block, : rows["size"][block]]) for block in lost]
    assert shard["retransmitted"] == shard["overtaken"] == len(lost)


# --- what else must be as without the loop ---


@pytest.mark.parametrize("shards", [1, 2])
def test_results_are_kept_for_those_who_may_lack_them(stack: ExitStack, runs: list[int], shards: int) -> None:
    kept = []
    for wrap in (as_it_is, portless):
        world = World(stack, wrap=wrap, keep_results=True, shards=shards)
        world.sum([[values(rank, LARGE), values(rank, 33)] for rank in range(2)], [FloatType.FLOAT32] * 2)
        kept.append([rank.engine.state.kept.tobytes() for rank in world.ranks])
        assert kept[-1][0] == kept[-1][1]
    assert kept[0] == kept[1]
    assert runs


def test_values_that_may_only_be_read(stack: ExitStack) -> None:
    sums = []
    for writable in (True, False):
        world, outs = World(stack), [np.zeros(LARGE, np.float32) for _ in range(2)]
        for rank in range(2):
            mine = values(rank, LARGE)
            mine.flags.writeable = writable
            world.ranks[rank].submit(mine, outs[rank])
        world.wait(1)
        sums.append([out.tobytes() for out in outs])
        assert sums[-1][0] == sums[-1][1]
    assert sums[0] == sums[1]


def test_values_that_go_elsewhere_are_only_read(stack: ExitStack, runs: list[int]) -> None:
    world, before = World(stack, 1), values(0, LARGE)
    mine, out = before.copy(), np.zeros_like(before)
    world.ranks[0].submit(mine, out)
    world.wait(1)
    assert mine.tobytes() == before.tobytes()
    assert out.any()
    assert runs


@either_loop
def test_what_was_contributed_adds_up_to_the_sum(stack: ExitStack, wrap: Any) -> None:
    """fix32 gives the exact sum of what the ranks contributed. In the middle of tensors that stream."""
    world = World(stack, fmt="fix32", wrap=wrap)
    arrays = [[values(rank, LARGE) for _ in range(3)] for rank in range(2)]
    contributed = [np.zeros(LARGE, np.float32) for _ in range(2)]
    for rank, of_rank, own in zip(world.ranks, arrays, contributed, strict=True):
        rank.submit(of_rank[0])
        rank.submit(of_rank[1], contributed=own)
        rank.submit(of_rank[2])
    world.wait(3)
    assert (contributed[0].astype(np.float64) + contributed[1]).astype(np.float32).tobytes() == arrays[0][1].tobytes()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_what_was_contributed_has_the_same_bits(stack: ExitStack, runs: list[int], fmt: str, shards: int) -> None:
    """Before and after tensors of which nobody asks that."""
    outcomes = []
    for wrap in (as_it_is, portless):
        runs.clear()
        world, own = World(stack, fmt=fmt, wrap=wrap, shards=shards), []
        for rank, of_rank in enumerate(world.ranks):
            for float_type in FloatType:
                mine, other = values(rank, LARGE, float_type), values(rank, 700, float_type)
                own.append(np.zeros_like(mine))
                of_rank.submit(mine, float_type=float_type, contributed=own[-1])
                of_rank.submit(other, float_type=float_type)
        world.wait(2 * len(FloatType))
        assert bool(runs) == (wrap is as_it_is)
        assert all(array.any() for array in own)
        outcomes.append([array.tobytes() for array in own])
    assert outcomes[0] == outcomes[1]


def test_maxima_of_bytes_come_between_tensors(stack: ExitStack, runs: list[int]) -> None:
    world = World(stack)
    tensors = [[values(rank, LARGE) for _ in range(2)] for rank in range(2)]
    levels = [np.random.default_rng(rank).integers(0, 255, 5000, np.uint8) for rank in range(2)]
    maxima = [np.zeros(5000, np.uint8) for _ in range(2)]
    for number, rank in enumerate(world.ranks):
        rank.submit(tensors[number][0])
        rank.submit_max(levels[number], maxima[number])
        rank.submit(tensors[number][1])
    world.wait(3)
    assert maxima[0].tolist() == maxima[1].tolist() == np.maximum(*levels).tolist()
    assert tensors[0][0].tobytes() == tensors[1][0].tobytes()
    assert tensors[0][1].tobytes() == tensors[1][1].tobytes()
    assert runs


@pytest.mark.parametrize("shards", [1, 3])
def test_counters_tell_the_same(stack: ExitStack, patient: None, shards: int) -> None:
    told = []
    for wrap in (as_it_is, portless):
        world = World(stack, wrap=wrap, shards=shards)
        world.sum([[values(rank, size) for size in SIZES] for rank in range(2)], [FloatType.FLOAT32] * len(SIZES))
        for rank in world.ranks:
            rank.transport.close()
            c = rank.counters
            assert min(c.encode_s, c.decode_s, c.network_s) > 0
            told.append((c.datagrams_out, c.datagrams_in, c.bytes_out, c.bytes_in, c.resent, c.repeated, c.foreign))
    assert told == [told[0]] * 4
    assert told[0][4:] == (0, 0, 0)


@either_loop
@pytest.mark.parametrize("records", [True, False])
def test_whoever_records_sees_the_phases(
    stack: ExitStack, runs: list[int], monkeypatch: pytest.MonkeyPatch, records: bool, wrap: Any
) -> None:
    """One at a time; of the loop as without it."""
    monkeypatch.setattr(phases, "_tracers", [])
    seen: list[str] = []

    def trace(name: str) -> ExitStack | None:
        if not records:
            return None
        seen.append(name)
        return ExitStack()

    phases.trace_with(trace)
    busy = {phase.range for phase in phases.Phase} - {phases.Phase.IDLE.range}
    arrays = [[values(rank, 100 * LARGE)] for rank in range(2)]
    world = World(stack, wrap=wrap)
    for _ in range(SUMS_MOST):  # the loop shows what lags most now and then, which in a quick sum may be one thing
        world.sum(arrays, [FloatType.FLOAT32])
        if not records or busy <= set(seen):
            break
    assert bool(runs) == (wrap is as_it_is)
    assert set(seen) - {phases.Phase.IDLE.range} == (busy if records else set())


def test_timers_of_the_transports_thread_are_not_late(stack: ExitStack) -> None:
    """It looks at a device every 20 us; the kernel would let it sleep for 50 more. Those of other threads stay so."""
    found: list[int] = []
    asked = threading.Event()

    def look() -> None:
        found.append(_slack_ns(threading.get_native_id()))
        asked.set()

    World(stack, 1).ranks[0].transport.post(look)
    assert asked.wait(20)
    assert found == [1000]
    assert _slack_ns(threading.get_native_id()) > 1000


def _slack_ns(thread: int) -> int:
    return int(Path(f"/proc/{thread}/timerslack_ns").read_text())
