"""After a network has broken, every block is finished on all ranks or on none: `inagg_host.core.reconcile`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.host.core.cluster import Cluster, Datagram

from inagg_host.core import Engine
from inagg_host.core.operation import Request
from inagg_host.core.reconcile import salvage, unfinished
from inagg_wire.layout import Kind
from inagg_wire.scale import FloatType

from .groups import Meeting, on_all

LANES = 16
Array = npt.NDArray[Any]


def values(rank: int, elements: int) -> Array:
    return np.random.default_rng(rank).normal(size=elements).astype(np.float32)


def begin(workers: int, elements: list[int], **options: Any) -> tuple[Cluster, list[list[Array]]]:
    """Ranks that have submitted tensors, in place, and have sent nothing yet."""
    cluster = Cluster(workers, lanes=LANES, window=4, **options)
    cluster.engines = [Engine(replace(cluster.epoch, rank=rank), keep_results=True) for rank in range(workers)]
    arrays = [[values(10 * i + rank, size) for i, size in enumerate(elements)] for rank in range(workers)]
    for engine, of_rank in zip(cluster.engines, arrays, strict=True):
        for array in of_rank:
            engine.submit(Request(array, array, FloatType.FLOAT32), cluster.now)
    return cluster, arrays


def undisturbed(workers: int, elements: list[int], **options: Any) -> list[Array]:
    cluster, arrays = begin(workers, elements, **options)
    cluster.run()
    return arrays[0]


def step(cluster: Cluster, rounds: int, lose: Any = lambda datagram: False) -> None:
    for _ in range(rounds):
        cluster.exchange(lose)
        cluster.now += 1e-4


def results_to(rank: int) -> Any:
    """Which datagrams are lost, if ``rank`` gets no results."""
    return lambda datagram: datagram.rank == rank and datagram.header.kind is Kind.RESULT


def pending(engine: Engine) -> list[list[bool]]:
    return [blocks.tolist() for _, blocks in unfinished(engine)]


def finish(cluster: Cluster) -> tuple[list[int], list[list[str]]]:
    """Salvage on all ranks: how many operations that finished on each, and what each called."""
    groups = Meeting(len(cluster.engines)).groups()
    finished = on_all(groups, lambda rank, group: len(salvage(cluster.engines[rank], group)))
    return finished, [group.calls for group in groups]


def test_what_one_rank_lacks_comes_from_another() -> None:
    cluster, arrays = begin(2, [30 * LANES])
    step(cluster, 3)
    step(cluster, 1, results_to(1))
    assert pending(cluster.engines[0]) != pending(cluster.engines[1])
    finish(cluster)
    assert pending(cluster.engines[0]) == pending(cluster.engines[1])
    assert arrays[0][0].tobytes() != arrays[1][0].tobytes(), "what is pending still has each rank's values"
    done = ~np.repeat(np.array(pending(cluster.engines[1])[0]), LANES)
    assert done.any()
    assert arrays[0][0][done].tobytes() == arrays[1][0][done].tobytes()


def test_an_operation_that_was_done_elsewhere_is_finished() -> None:
    cluster, arrays = begin(2, [3 * LANES])
    last = unfinished(cluster.engines[0])[0][0].shape.blocks - 1
    step(cluster, 20, lambda d: results_to(1)(d) and d.block == last)
    assert [engine.idle for engine in cluster.engines] == [True, False]
    finished, _ = finish(cluster)
    assert finished == [0, 1]
    assert arrays[0][0].tobytes() == arrays[1][0].tobytes()


def test_nothing_is_passed_on_where_nothing_lacks() -> None:
    cluster, _ = begin(3, [10 * LANES])
    step(cluster, 3)
    finished, calls = finish(cluster)
    assert finished == [0, 0, 0]
    assert calls == [["gather"]] * 3


def test_the_values_of_pending_blocks_are_untouched() -> None:
    cluster, arrays = begin(2, [10 * LANES])
    step(cluster, 3)
    finish(cluster)
    for rank, engine in enumerate(cluster.engines):
        left = np.repeat(np.array(pending(engine)[0]), LANES)
        assert left.any()
        assert arrays[rank][0][left].tobytes() == values(rank, 10 * LANES)[left].tobytes()


def test_ranks_give_what_each_of_them_alone_has() -> None:
    """Each of three ranks has lost other results, so each has something that another lacks."""
    cluster, arrays = begin(3, [30 * LANES])
    step(cluster, 3)
    step(cluster, 1, lambda d: d.header.kind is Kind.RESULT and d.block % 3 == d.rank)
    _, calls = finish(cluster)
    sources = {call.rpartition(" ")[2] for call in calls[0] if call.startswith("broadcast")}
    assert len(sources) > 1
    assert calls[0] == calls[1] == calls[2]
    assert pending(cluster.engines[0]) == pending(cluster.engines[1]) == pending(cluster.engines[2])
    done = ~np.repeat(np.array(pending(cluster.engines[0])[0]), LANES)
    assert len({of_rank[0][done].tobytes() for of_rank in arrays}) == 1


def test_a_rank_that_has_not_begun_has_finished_nothing() -> None:
    """It is still computing; so the others cannot have any sum of that tensor."""
    cluster, arrays = begin(2, [5 * LANES])
    late = Engine(replace(cluster.epoch, rank=1), keep_results=True)
    cluster.engines[1] = late
    step(cluster, 5)
    finish(cluster)
    assert unfinished(late) == []
    assert pending(cluster.engines[0]) == [[True] * 5]
    assert arrays[0][0].tobytes() == values(0, 5 * LANES).tobytes()


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1 << 32),
    workers=st.integers(2, 4),
    fmt=st.sampled_from(["nat8", "nat4-nat8", "dith8", "fix32"]),
    shards=st.integers(1, 3),
    rounds=st.integers(0, 30),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    elements=st.lists(st.integers(1, 30 * LANES), min_size=1, max_size=3),
)
def test_whatever_was_lost_all_ranks_end_with_the_same_blocks(
    seed: int, workers: int, fmt: str, shards: int, rounds: int, loss: float, elements: list[int]
) -> None:
    """And what is done is to the bit what it would have been; what is not, is as it was."""
    expected = undisturbed(workers, elements, fmt=fmt, shards=shards)
    cluster, arrays = begin(workers, elements, fmt=fmt, shards=shards)
    rng = random.Random(seed)

    def lose(datagram: Datagram) -> bool:
        return rng.random() < loss

    step(cluster, rounds, lose)
    before = [len(finished) for finished in cluster.finished]
    finished, _ = finish(cluster)
    total = {a + b for a, b in zip(before, finished, strict=True)}
    assert len(total) == 1, "as many operations are done on all ranks"
    done = total.pop()
    left = [pending(engine) for engine in cluster.engines]
    assert all(of_rank == left[0] for of_rank in left)
    assert len(left[0]) == len(elements) - done
    for rank, of_rank in enumerate(arrays):
        for i, array in enumerate(of_rank):
            mask = np.zeros(array.size, np.bool_)
            if i >= done:
                mask = np.repeat(np.array(left[rank][i - done]), LANES)[: array.size]
            assert array[~mask].tobytes() == expected[i][~mask].tobytes()
            assert array[mask].tobytes() == values(10 * i + rank, array.size)[mask].tobytes()


def test_a_group_that_fails_is_heard_of() -> None:
    cluster, _ = begin(2, [LANES])
    meeting = Meeting(2)
    meeting.end()
    with pytest.raises(RuntimeError):
        salvage(cluster.engines[0], meeting.groups()[0])
