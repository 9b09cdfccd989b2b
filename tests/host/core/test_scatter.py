"""A reduce-scatter: each rank gets the sums of its own piece, and the others are told that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.core import RanksDisagree
from inagg_host.core.engine import Engine
from inagg_host.core.operation import Request
from inagg_host.core.state import FOREIGN, FRESH, UNNEEDED
from inagg_wire import header as wire
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES, Kind, Op
from inagg_wire.scale import FloatType

from .cluster import Cluster, Datagram, counts, shard_of

RANKS = 3


def values_of(rank: int, elements: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(rank).normal(size=elements).astype(np.float32)


def all_reduced(cluster: Cluster, inputs: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The sums that an all-reduce gives, where it comes first."""
    sums = cluster.submit_all(inputs)
    cluster.run()
    return sums[0]


@pytest.mark.parametrize("fmt", sorted(FORMATS))
@pytest.mark.parametrize("shards", [1, 2])
def test_each_rank_has_the_bits_that_an_all_reduce_would_give_it(fmt: str, shards: int) -> None:
    """Where pieces are whole blocks, as then the blocks have the same numbers, and so the same noise."""
    options: dict[str, Any] = {"workers": RANKS, "fmt": fmt, "lanes": 64, "shards": shards}
    inputs = [values_of(rank, RANKS * 4 * 64) for rank in range(RANKS)]
    whole = all_reduced(Cluster(**options), inputs)
    cluster = Cluster(**options)
    outs = [cluster.scatter(rank, of_rank) for rank, of_rank in enumerate(inputs)]
    cluster.run()
    assert np.concatenate(outs).tobytes() == whole.tobytes()


@pytest.mark.parametrize("elements", [1, 31, 32, 33, 100, 1000])
@pytest.mark.parametrize("scatters", [True, False])
def test_pieces_of_any_size(elements: int, scatters: bool) -> None:
    cluster = Cluster(workers=RANKS, fmt="fix32", lanes=32, scatters=scatters)
    inputs = [values_of(rank, RANKS * elements) for rank in range(RANKS)]
    outs = [cluster.scatter(rank, of_rank) for rank, of_rank in enumerate(inputs)]
    cluster.run()
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    np.testing.assert_allclose(np.concatenate(outs), exact, atol=1e-6)


@pytest.mark.parametrize("float_type", FloatType, ids=lambda t: t.name.lower())
def test_means_of_every_type_and_what_is_contributed(float_type: FloatType) -> None:
    cluster = Cluster(workers=2, fmt="fix32", lanes=16)
    ones = np.ones(2 * 40, np.float32)
    values = (ones.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if float_type is FloatType.BFLOAT16 else ones
    values = values.astype(float_type.dtype)
    own = [np.zeros_like(values) for _ in range(2)]
    outs = [cluster.scatter(rank, values, float_type, divisor=2, contributed=own[rank]) for rank in range(2)]
    cluster.run()
    for rank in range(2):
        assert outs[rank].tobytes() == values[:40].tobytes()
        assert own[rank].tobytes() == values.tobytes()  # of all pieces: each rank contributes to all


def test_others_get_a_header_and_the_owner_the_result() -> None:
    cluster = Cluster(workers=RANKS, lanes=64, window=64)
    for rank in range(RANKS):
        cluster.scatter(rank, values_of(rank, RANKS * 5 * 64))
    came: list[Datagram] = []
    for _ in range(4):
        answers = cluster.aggregate(d for rank in range(RANKS) for d in cluster.send(rank))
        cluster.take(answers)
        came += answers
    sums = [d for d in came if wire.parse(d.data).header.op is Op.SUM]
    assert len(sums) == RANKS * RANKS * 5
    for datagram in sums:
        header = wire.parse(datagram.data).header
        assert header.kind is (Kind.RESULT if header.owner == datagram.rank + 1 else Kind.ACK)
        assert (len(datagram.data) == HEADER_BYTES) is (header.kind is Kind.ACK)


def test_in_place_the_sums_stand_where_the_own_piece_stood() -> None:
    cluster = Cluster(workers=2, fmt="fix32", lanes=16)
    arrays = [values_of(rank, 2 * 50) for rank in range(2)]
    before = [array.copy() for array in arrays]
    for rank, array in enumerate(arrays):
        piece = array[rank * 50 : (rank + 1) * 50]
        cluster.engines[rank].submit(Request(array, piece, FloatType.FLOAT32, scatters=True), cluster.now)
    cluster.run()
    exact = before[0].astype(np.float64) + before[1]
    for rank, array in enumerate(arrays):
        own = slice(rank * 50, (rank + 1) * 50)
        np.testing.assert_allclose(array[own], exact[own], atol=1e-6)
        other = slice((1 - rank) * 50, (2 - rank) * 50)
        assert array[other].tobytes() == before[rank][other].tobytes()


@pytest.mark.parametrize("lost", ["results", "acknowledgements", "contributions"])
def test_what_is_lost_comes_again(lost: str) -> None:
    cluster, dropped = Cluster(workers=RANKS, fmt="fix32", lanes=16, window=16), set[tuple[int, int, str]]()

    def lose(datagram: Datagram) -> bool:
        """Each one once, every third."""
        header = wire.parse(datagram.data).header
        kind = {Kind.RESULT: "results", Kind.ACK: "acknowledgements", Kind.CONTRIBUTION: "contributions"}[header.kind]
        key = datagram.rank, datagram.block, kind
        if kind != lost or key in dropped or datagram.block % 3:
            return False
        dropped.add(key)
        return True

    inputs = [values_of(rank, RANKS * 500) for rank in range(RANKS)]
    outs = [cluster.scatter(rank, of_rank) for rank, of_rank in enumerate(inputs)]
    for _ in range(3000):
        cluster.exchange(lose)
        cluster.now += 1e-3
        if all(engine.idle for engine in cluster.engines):
            break
    assert dropped
    np.testing.assert_allclose(np.concatenate(outs), np.sum(inputs, axis=0, dtype=np.float64), atol=1e-6)


def test_a_new_epoch_gives_the_bits_of_a_run_that_nobody_disturbed() -> None:
    inputs = [values_of(rank, RANKS * 300) for rank in range(RANKS)]
    runs = []
    for restarts in (False, True):
        cluster = Cluster(workers=RANKS, lanes=16, window=8)
        outs = [cluster.scatter(rank, of_rank) for rank, of_rank in enumerate(inputs)]
        for step in range(6):
            answers = cluster.aggregate(d for rank in range(RANKS) for d in cluster.send(rank))
            cluster.take(d for d in answers if not restarts or d.rank != step % RANKS)  # ranks are at different blocks
            cluster.now += 1e-4
        if restarts:
            cluster.new_epoch()
        cluster.run()
        runs.append(b"".join(out.tobytes() for out in outs))
    assert runs[0] == runs[1]


def test_an_epoch_of_a_switch_that_cannot_do_it_is_refused() -> None:
    cluster = Cluster(workers=2, lanes=16)
    for rank in range(2):
        cluster.scatter(rank, values_of(rank, 64))
    engine = cluster.engines[0]
    with pytest.raises(ValueError, match="cannot send results to one rank alone"):
        engine.resume(replace(cluster.epoch, number=2, token=5, scatters=False), cluster.now)
    assert engine.epoch.scatters


def test_where_results_are_kept_all_ranks_get_them() -> None:
    """To pass on what others lack, when the switch is gone."""
    cluster = Cluster(workers=2, fmt="fix32", lanes=16)
    cluster.engines = [Engine(replace(cluster.epoch, rank=rank), keep_results=True) for rank in range(2)]
    outs = [cluster.scatter(rank, np.full(64, rank + 1.0)) for rank in range(2)]
    sent = [wire.parse(d.data).header for rank in range(2) for d in cluster.send(rank)]
    cluster.run()
    assert {header.owner for header in sent} == {0}
    assert all((out == 3).all() for out in outs)


def test_an_acknowledgement_does_not_stand_for_the_own_result() -> None:
    """A group brings it to the owner, too."""
    cluster = Cluster(workers=2, lanes=16)
    for rank in range(2):
        cluster.scatter(rank, values_of(rank, 2 * 16))
    cluster.exchange()  # scales
    for answer in cluster.aggregate(d for rank in range(2) for d in cluster.send(rank)):
        header = wire.parse(answer.data).header
        if header.kind is Kind.ACK:
            owner = header.owner - 1
            fresh = counts(cluster.engines[owner], FRESH)
            cluster.take([replace(answer, rank=owner)])
            assert counts(cluster.engines[owner], UNNEEDED) == 1
            assert counts(cluster.engines[owner], FRESH) == fresh
            cluster.take([answer])
    cluster.run()


def test_a_result_for_another_rank_is_not_used() -> None:
    cluster = Cluster(workers=2, lanes=16)
    for rank in range(2):
        cluster.scatter(rank, values_of(rank, 2 * 16))
    cluster.exchange()
    for answer in cluster.aggregate(d for rank in range(2) for d in cluster.send(rank)):
        header = wire.parse(answer.data).header
        if header.kind is Kind.RESULT:
            other = 2 - header.owner
            cluster.take([replace(answer, rank=other)])
            assert counts(cluster.engines[other], FOREIGN) == 1


def test_results_that_come_by_another_way_do_not_overtake() -> None:
    """Acknowledgements come to a group, own results to the rank: what is read first tells nothing of the other."""
    cluster = Cluster(workers=2, lanes=32, window=64)
    for rank in range(2):
        cluster.scatter(rank, values_of(rank, 2 * 32 * 20))
    cluster.exchange()
    answers = cluster.aggregate(d for rank in range(2) for d in cluster.send(rank))
    cluster.take(d for d in answers if wire.parse(d.data).header.owner != d.rank + 1)
    assert [int(shard_of(engine)["lost"]) for engine in cluster.engines] == [0, 0]
    own = [d for d in answers if d.rank == 0 and wire.parse(d.data).header.kind is Kind.RESULT]
    cluster.take(own[10:])  # but the first ten of these are lost
    assert int(shard_of(cluster.engines[0])["lost"]) == 10


def test_ranks_that_do_not_do_the_same_find_out() -> None:
    cluster = Cluster(workers=2, lanes=16)
    cluster.submit(0, np.ones(64))
    cluster.scatter(1, np.ones(64))
    with pytest.raises(RanksDisagree):
        cluster.run()


def test_values_that_are_no_equal_pieces_are_refused() -> None:
    engine = Cluster(workers=3, lanes=16).engines[0]
    with pytest.raises(ValueError, match="3 times as many elements as out"):
        engine.submit(Request(np.ones(64, np.float32), np.ones(21, np.float32), FloatType.FLOAT32, scatters=True), 0.0)
    assert engine.idle
