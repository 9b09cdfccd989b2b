"""Tensors in, sums out: what users of the engine see."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.sim.network import Weather
from tests.host.sim.simulation import Simulation
from tests.host.sim.world import make_world, narrowed

from inagg_host.core import Engine, Epoch, ShardLease
from inagg_host.core.operation import Request
from inagg_wire.formats import FORMATS, job_format
from inagg_wire.layout import Op
from inagg_wire.scale import Floats, FloatType, widen
from inagg_wire.slots import Lease

from .cluster import Cluster, blocks


def of_type(values: npt.ArrayLike, float_type: FloatType) -> Floats:
    return narrowed(np.asarray(values, np.float64), float_type)


def tensor(elements: int, float_type: FloatType = FloatType.FLOAT32) -> Floats:
    """Values that all formats carry exactly (dith8, whose levels are 127ths: nearly)."""
    return of_type(np.resize([1.0, -1.0, 0.0, 1.0], elements), float_type)


# --- what is submitted ---


@pytest.mark.parametrize(
    ("values", "out", "match"),
    [
        (np.ones(0, np.float32), np.ones(0, np.float32), "at least one"),
        (np.ones(3, np.float32), np.ones(4, np.float32), "same number of elements"),
        (np.ones(3, np.float64), np.ones(3, np.float32), "float64 values, not float32"),
        (np.ones(3, np.float32), np.ones(3, np.float64), "float64 values, not float32"),
        (np.ones((3, 1), np.float32), np.ones(3, np.float32), "one-dimensional"),
        (np.ones(6, np.float32)[::2], np.ones(3, np.float32), "contiguous"),
    ],
)
def test_what_cannot_be_summed_is_refused(values: npt.NDArray[Any], out: npt.NDArray[Any], match: str) -> None:
    (engine,) = Cluster(1).engines
    with pytest.raises(ValueError, match=match):
        engine.submit(Request(values, out, FloatType.FLOAT32), 0.0)
    assert engine.idle
    assert list(engine.outgoing(0.0)) == []


def test_sums_cannot_go_where_nothing_may_be_written() -> None:
    (engine,) = Cluster(1).engines
    values = np.ones(3, np.float32)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        engine.submit(Request(values, values, FloatType.FLOAT32), 0.0)


def test_values_that_may_not_be_written_can_be_summed_elsewhere() -> None:
    cluster = Cluster(1)
    values, out = np.ones(3, np.float32), np.zeros(3, np.float32)
    values.flags.writeable = False
    cluster.engines[0].submit(Request(values, out, FloatType.FLOAT32), cluster.now)
    cluster.run()
    assert out.tolist() == [1, 1, 1]


def test_a_refused_tensor_leaves_no_gap_in_the_numbers() -> None:
    cluster = Cluster(2)
    with pytest.raises(ValueError, match="at least one"):
        cluster.submit(0, [])
    outs = cluster.submit_all([[1.0, 2.0]] * 2)
    cluster.run()
    assert [out.tolist() for out in outs] == [[2.0, 4.0]] * 2


# --- sums ---


@pytest.mark.parametrize("fmt", sorted(FORMATS))
@pytest.mark.parametrize("float_type", FloatType)
def test_every_format_sums_every_type(fmt: str, float_type: FloatType) -> None:
    cluster = Cluster(2, fmt, lanes=64)
    outs = cluster.submit_all([tensor(150, float_type)] * 2, float_type=float_type)
    cluster.run()
    for out in outs:
        assert widen(out, float_type) == pytest.approx(2 * widen(tensor(150, float_type), float_type), rel=0.01)


@pytest.mark.parametrize("elements", [1, 7, 31, 32, 33, 64, 24 * 32, 24 * 32 + 1, 1000, 5000])
def test_every_size_is_summed(elements: int) -> None:
    cluster = Cluster(2, lanes=32)
    outs = cluster.submit_all([tensor(elements)] * 2)
    cluster.run()
    for out in outs:
        assert (out == 2 * tensor(elements)).all()


def test_sums_can_take_the_place_of_the_values() -> None:
    cluster = Cluster(2, lanes=32)
    arrays = [np.array([1.0, 2.0, 4.0], np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        cluster.engines[rank].submit(Request(array, array, FloatType.FLOAT32), cluster.now)
    cluster.run()
    assert [array.tolist() for array in arrays] == [[2.0, 4.0, 8.0]] * 2


def test_values_are_only_read() -> None:
    cluster, values = Cluster(2), [np.array([1.0, 2.0], np.float32) for _ in range(2)]
    for rank in range(2):
        cluster.engines[rank].submit(Request(values[rank], np.zeros(2, np.float32), FloatType.FLOAT32), cluster.now)
    cluster.run()
    assert [v.tolist() for v in values] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("divisor", [2, 4])
def test_a_divisor_gives_the_mean(divisor: int) -> None:
    cluster = Cluster(4)
    outs = cluster.submit_all([[4.0, -8.0, 0.0]] * 4, divisor=divisor)
    cluster.run()
    assert [out.tolist() for out in outs] == [[16 / divisor, -32 / divisor, 0.0]] * 4


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_any_number_of_shards_gives_the_sums(shards: int) -> None:
    cluster = Cluster(2, shards=shards)
    outs = cluster.submit_all([tensor(1000)] * 2)
    cluster.run()
    for out in outs:
        assert (out == 2 * tensor(1000)).all()


def test_blocks_go_round_the_shards() -> None:
    cluster = Cluster(1, shards=3, lanes=8)
    cluster.submit(0, np.ones(8 * 6))
    sent = cluster.send(0)
    cluster.take(cluster.aggregate(sent))
    sent += cluster.send(0)
    assert [(datagram.block, datagram.shard) for datagram in sorted(sent, key=lambda d: d.block)] == [
        (0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2), (6, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", ["nat8", "dith8", "fix32"])
def test_what_is_not_finite_on_one_rank_makes_its_block_nan_on_all(fmt: str, value: float) -> None:
    cluster = Cluster(3, fmt, lanes=32)
    values = [np.ones(32 * 3, np.float32) for _ in range(3)]
    values[1][40] = value
    outs = cluster.submit_all(values)
    cluster.run()
    for out in outs:
        assert np.isnan(out[32:64]).all()
        assert np.isfinite(out[:32]).all()
        assert np.isfinite(out[64:]).all()
        assert out.tobytes() == outs[0].tobytes()


def test_zeros_stay_zeros() -> None:
    cluster = Cluster(2)
    outs = cluster.submit_all([np.zeros(100)] * 2)
    cluster.run()
    assert all(out.tobytes() == bytes(400) for out in outs)


# --- several tensors ---


def test_tensors_are_summed_in_the_order_in_which_they_are_submitted() -> None:
    cluster = Cluster(2, lanes=8)
    tensors = [(np.ones(n, np.float32), np.zeros(n, np.float32)) for n in (100, 1, 30)]
    submitted = [cluster.engines[0].submit(Request(*arrays, FloatType.FLOAT32), 0.0) for arrays in tensors]
    for n in (100, 1, 30):
        cluster.submit(1, np.ones(n))
    cluster.run()
    assert cluster.finished[0] == submitted


def test_a_tensor_begins_before_the_one_before_is_done() -> None:
    cluster = Cluster(1, lanes=8)
    cluster.submit(0, np.ones(8))
    cluster.submit(0, np.ones(8))
    cluster.take(cluster.aggregate(cluster.send(0)))
    assert blocks(cluster.send(0)) == [1, 2]  # the values of the first and the scales of the second


def test_types_can_be_mixed() -> None:
    cluster = Cluster(2)
    outs = [cluster.submit_all([tensor(50, t)] * 2, float_type=t) for t in FloatType]
    cluster.run()
    for float_type, of_type_ in zip(FloatType, outs, strict=True):
        for out in of_type_:
            assert (widen(out, float_type) == 2 * widen(tensor(50, float_type), float_type)).all()


def test_the_same_tensor_twice_is_rounded_independently() -> None:
    """The number of a block in the job seeds its noise."""
    values = np.full(2000, 1.3)
    cluster = Cluster(1, lanes=64)
    first, second = cluster.submit(0, values), cluster.submit(0, values)
    cluster.run()
    assert (first != second).any()


def test_a_rank_may_submit_later_than_the_others() -> None:
    cluster = Cluster(2)
    early = cluster.submit(0, np.ones(100))
    for _ in range(20):
        cluster.exchange()
        cluster.now += 0.3
    late = cluster.submit(1, np.ones(100))
    cluster.run()
    assert early.tolist() == late.tolist() == [2.0] * 100


def test_values_that_change_during_the_sum_are_noticed_when_they_outgrow_the_scale() -> None:
    cluster = Cluster(1, "nat4", window=1, lanes=16)  # of nat8 the codes are drafted when scales are found
    values = np.ones(8, np.float32)
    cluster.engines[0].submit(Request(values, np.zeros(8, np.float32), FloatType.FLOAT32), cluster.now)
    cluster.take(cluster.aggregate(cluster.send(0)))
    values[:] = 1000.0
    with pytest.raises(RuntimeError, match="changed during the all-reduce"):
        cluster.send(0)


# --- the same as the reference ---


@pytest.mark.parametrize("fmt", sorted(FORMATS))
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_calm_runs_are_the_reference_bit_for_bit(fmt: str, workers: int) -> None:
    """`Simulation` compares every datagram and every sum with the reference codec's."""
    tensors = [(1000, float_type) for float_type in FloatType]
    world = make_world(3, job_format(fmt), workers, 64, 16, 2, tensors)
    outcome = Simulation(world, Weather(), 0).run()
    assert outcome.resent == 0


def test_datagrams_fit_what_was_admitted() -> None:
    """Scales travel in datagrams no larger than those of values, in the same slots."""
    for name, fmt in FORMATS.items():
        cluster = Cluster(1, name, lanes=64)
        cluster.submit(0, np.ones(64))
        (scales,) = cluster.send(0)
        assert scales.header.op is Op.MAX
        assert scales.header.lanes == fmt.scale_lanes(64)
        cluster.run()


def test_an_engine_begins_where_its_epoch_says() -> None:
    lease = Lease(0, 16)
    shards = tuple(ShardLease(("10.0.0.2", shard), lease, 100) for shard in range(2))
    engine = Engine(Epoch(1, 1, 1, job_format("nat8"), 1, 0, 32, 0, shards))
    assert engine.positions == [100, 100]
    engine.submit(Request(np.ones(3, np.float32), np.ones(3, np.float32), FloatType.FLOAT32), 0.0)
    assert [out.shard for out in engine.outgoing(0.0)] == [0]
    assert engine.state.shards["snd_nxt"][0] == 101
