"""What a rank's own codes stand for, and maxima of bytes: what the engine offers to compressors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.codec.reference import agree, blocks_of, make_job, random_values
from tests.host.core.cluster import Cluster

from inagg_host.core import RanksDisagree
from inagg_host.core.operation import Request
from inagg_host.task import make_max_task, make_task
from inagg_testbed.kernel_calls import Call
from inagg_wire import payload, scale
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.reencode import integers
from inagg_wire.scale import FloatType

every_format = pytest.mark.parametrize("name", FORMATS)
EXACT_SUMS = ("tern", "dith8-exact", "fix32")
"""Formats in which a result is the exact sum of what the workers contributed."""


@every_format
@pytest.mark.parametrize("float_type", [FloatType.FLOAT32, FloatType.FLOAT64], ids=["float32", "float64"])
def test_contributions_are_decoded_exactly(name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type, 3, lanes=64)
    rng = np.random.default_rng(1)
    values = random_values(rng, 5 * job.lanes - 7, float_type, 3)
    values[job.lanes : 2 * job.lanes] = 0
    scales, refinements = agree(job, values)
    got, datagrams = np.full_like(values, np.nan), np.zeros((5, job.datagram_bytes), np.uint8)
    Call(job, values, scales, refinements, ring=datagrams, contributed=got).encode(0, 0, 5, 0)
    for i, block in enumerate(blocks_of(job, got)):
        codes = payload.unpack(job.format.up, datagrams[i, HEADER_BYTES:].tobytes())[: block.size]
        top = job.format.levels(3)
        sums, invalid = integers(job.format.up, codes, top)
        unit = scale.unit(job.format, 3, int(scales[i]), int(refinements[i]))
        assert unit is not None
        assert invalid == 0
        assert block.astype(np.float64).tolist() == (sums * unit.mantissa * 2.0**unit.exponent).tolist()


def test_contributions_to_a_block_that_is_nan_elsewhere_are_nan() -> None:
    job = make_job("tern", FloatType.FLOAT32, 3, lanes=64)
    values, got = np.ones(64, np.float32), np.zeros(64, np.float32)
    Call(job, values, np.array([scale.SCALE_NONFINITE], np.uint8), contributed=got).encode(0, 0, 1, 0)
    assert np.isnan(got).all()


def sum_all(name: str, lose: float, seed: int = 3) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]:
    """Sums and contributions of three ranks, over a network that loses datagrams."""
    cluster, rng, chance = Cluster(3, name, lanes=64), np.random.default_rng(5), random.Random(seed)
    outs, owns = [], []
    for engine in cluster.engines:
        values = rng.standard_normal(64 * 20 + 5).astype(np.float32)
        out, own = np.zeros_like(values), np.full_like(values, np.nan)
        engine.submit(Request(values, out, FloatType.FLOAT32, 1, own), cluster.now)
        outs.append(out)
        owns.append(own)
    while not all(engine.idle for engine in cluster.engines):
        cluster.exchange(lambda _: chance.random() < lose)
        cluster.now += 0.01
    return outs, owns


@pytest.mark.parametrize("name", EXACT_SUMS)
def test_contributions_add_up_to_the_result(name: str) -> None:
    outs, owns = sum_all(name, 0.0)
    total = np.sum([own.astype(np.float64) for own in owns], axis=0)
    assert (outs[0] == total.astype(np.float32)).all()


@every_format
def test_losses_change_no_contribution(name: str) -> None:
    calm, stormy = sum_all(name, 0.0), sum_all(name, 0.2)
    assert np.concatenate(calm).tobytes() == np.concatenate(stormy).tobytes()


# --- maxima of bytes ---


@every_format
@pytest.mark.parametrize("size", [1, 56, 57, 1000])
def test_maxima_of_bytes(name: str, size: int) -> None:
    cluster, rng = Cluster(3, name, lanes=64), np.random.default_rng(size)
    rows = [rng.integers(0, 256, size).astype(np.uint8) for _ in cluster.engines]
    outs = [np.zeros(size, np.uint8) for _ in rows]
    for engine, row, out in zip(cluster.engines, rows, outs, strict=True):
        engine.submit(Request(row, out, None), cluster.now)
    cluster.run()
    for out in outs:
        assert out.tolist() == np.max(rows, axis=0).tolist()


def test_maxima_in_place_between_sums_over_loss() -> None:
    cluster, chance = Cluster(2, "nat8", lanes=64), random.Random(1)
    tensors = [np.full(500, 1.0, np.float32) for _ in cluster.engines]
    rows = [np.arange(300).astype(np.uint8) if rank else np.full(300, 100, np.uint8) for rank in range(2)]
    want = np.maximum(*rows)
    for engine, tensor, row in zip(cluster.engines, tensors, rows, strict=True):
        engine.submit(Request(tensor, tensor, FloatType.FLOAT32), cluster.now)
        engine.submit(Request(row, row, None), cluster.now)
        engine.submit(Request(tensor[:7], tensor[:7], FloatType.FLOAT32), cluster.now)
    while not all(engine.idle for engine in cluster.engines):
        cluster.exchange(lambda _: chance.random() < 0.2)
        cluster.now += 0.01
    for tensor, row in zip(tensors, rows, strict=True):
        assert row.tolist() == want.tolist()
        assert set(tensor[7:]) == {2.0}
        assert set(tensor[:7]) == {4.0}


def test_a_rank_that_sums_where_others_take_maxima_is_found_out() -> None:
    cluster = Cluster(2, "nat8", lanes=64)
    cluster.engines[0].submit(Request(np.ones(8, np.uint8), np.ones(8, np.uint8), None), cluster.now)
    cluster.submit(1, np.ones(8))
    with pytest.raises(RanksDisagree, match="8 elements of uint8"):
        cluster.run()


@pytest.mark.parametrize(
    ("values", "out", "match"),
    [
        (np.ones(3, np.float32), None, "maxima are of bytes"),
        (np.ones(3, np.uint8), np.ones(4, np.uint8), "of one shape"),
        (np.ones(6, np.uint8)[::2], None, "contiguous"),
    ],
)
def test_what_has_no_maxima_is_refused(values: npt.NDArray[Any], out: npt.NDArray[Any] | None, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make_max_task(values, out)


@pytest.mark.parametrize(
    ("contributed", "match"),
    [
        (np.ones(4, np.float32), r"contributed is float32 \(4,\)"),
        (np.ones(3, np.float64), "contributed is float64"),
        (np.ones(6, np.float32)[::2], "contiguous"),
    ],
)
def test_room_for_contributions_must_fit(contributed: npt.NDArray[Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make_task(np.ones(3, np.float32), None, None, 1, contributed)


def test_contributions_need_memory_of_their_own() -> None:
    values = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="memory of its own"):
        make_task(values, np.ones(3, np.float32), None, 1, values)
