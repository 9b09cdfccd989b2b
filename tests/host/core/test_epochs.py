"""New epochs: after a restart all goes on, with the bits that it would have had."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.core.operation import Request
from inagg_host.core.state import FOREIGN
from inagg_wire.layout import GENERATION_MAX, Kind
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

from .cluster import JOB, Cluster, blocks, counts

VALUES = 40
WINDOW = 4


def values(rank: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(rank).normal(size=8 * VALUES)


def running(shards: int = 1, rounds: int = 4, first: int = 0) -> tuple[Cluster, list[npt.NDArray[np.float32]]]:
    """Two ranks in the middle of a tensor."""
    cluster = Cluster(2, lanes=8, window=WINDOW, shards=shards, first=first)
    outs = cluster.submit_all([values(0), values(1)])
    for _ in range(rounds):
        cluster.exchange()
        cluster.now += 1e-4
    return cluster, outs


def undisturbed(shards: int = 1, first: int = 0) -> list[bytes]:
    cluster, outs = running(shards, first=first)
    cluster.run()
    return [out.tobytes() for out in outs]


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("forget", [True, False])
@pytest.mark.parametrize("rounds", range(0, 12, 2))
def test_a_new_epoch_changes_no_bit(shards: int, forget: bool, rounds: int) -> None:
    cluster, outs = running(shards, rounds)
    cluster.new_epoch(forget)
    cluster.run()
    assert [out.tobytes() for out in outs] == undisturbed(shards)


def test_many_new_epochs_change_no_bit() -> None:
    cluster, outs = running()
    for _ in range(30):
        cluster.new_epoch()
        cluster.exchange()
        cluster.now += 1e-4
    cluster.run()
    assert [out.tobytes() for out in outs] == undisturbed()


def test_a_switch_that_has_restarted_may_give_the_job_another_number() -> None:
    cluster, outs = running()
    cluster.new_epoch(job=JOB + 1)
    cluster.run()
    assert [out.tobytes() for out in outs] == undisturbed()


def apart() -> tuple[Cluster, list[npt.NDArray[np.float32]]]:
    """Rank 0 has results that rank 1 lacks: those from rank 1's position on."""
    cluster, outs = running()
    for _ in range(WINDOW):
        cluster.exchange(lose=lambda datagram: datagram.rank == 1 and datagram.header.kind is Kind.RESULT)
    assert cluster.engines[0].positions[0] == cluster.engines[1].positions[0] + WINDOW
    return cluster, outs


def test_ranks_that_are_a_window_apart_go_on_together() -> None:
    cluster, outs = apart()
    cluster.new_epoch()
    cluster.run()
    assert [out.tobytes() for out in outs] == undisturbed()


def test_all_go_back_to_the_smallest_block_that_anyone_needs() -> None:
    cluster, _ = apart()
    (needed,) = cluster.engines[1].positions
    cluster.new_epoch()
    assert [engine.positions for engine in cluster.engines] == [[needed], [needed]]
    assert [blocks(cluster.send(rank))[0] for rank in range(2)] == [needed, needed]


def test_what_is_sent_again_keeps_to_the_window() -> None:
    """Though all of it is there: else a slot could be used again while a rank waits for its result."""
    cluster, _ = apart()
    (needed,) = cluster.engines[1].positions
    cluster.new_epoch()
    assert blocks(cluster.send(0)) == list(range(needed, needed + WINDOW))


def test_results_that_a_rank_has_are_not_written_again() -> None:
    cluster, outs = apart()
    written = outs[0] != 0
    outs[0][written] = 1e9
    cluster.new_epoch()
    cluster.run()
    assert (outs[0][written] == 1e9).all()


def test_a_rank_that_has_all_its_sums_still_sends_for_the_others() -> None:
    cluster, outs = running()
    last = sum(operation.shape.blocks for operation in cluster.engines[0].operations) - 1
    for _ in range(20):
        cluster.exchange(lose=lambda d: d.rank == 1 and d.header.kind is Kind.RESULT and d.block == last)
    assert [engine.idle for engine in cluster.engines] == [True, False]
    cluster.new_epoch()
    cluster.run()
    assert [out.tobytes() for out in outs] == undisturbed()


def test_datagrams_of_the_old_epoch_are_foreign_in_the_new() -> None:
    cluster, _ = running()
    late = cluster.aggregate([*cluster.send(0), *cluster.send(1)])
    cluster.new_epoch()
    foreign = counts(cluster.engines[0], FOREIGN)
    cluster.take(late)
    assert counts(cluster.engines[0], FOREIGN) == foreign + len(late) // 2


def test_an_in_place_sum_goes_on_from_what_was_sent() -> None:
    """Its input is gone: the datagrams are kept."""
    cluster = Cluster(2, lanes=8, window=WINDOW)
    arrays = [values(rank).astype(np.float32) for rank in range(2)]
    for rank, array in enumerate(arrays):
        cluster.engines[rank].submit(Request(array, array, FloatType.FLOAT32), cluster.now)
    for _ in range(6):
        cluster.exchange()
    cluster.new_epoch()
    cluster.run()
    assert [array.tobytes() for array in arrays] == undisturbed()


def test_a_rank_has_results_though_the_first_block_was_lost() -> None:
    cluster = Cluster(2, lanes=8, window=WINDOW)
    cluster.submit_all([values(0), values(1)])
    assert not any(engine.has_results for engine in cluster.engines)
    cluster.exchange(lose=lambda datagram: datagram.block == 0)
    cluster.exchange(lose=lambda datagram: datagram.block == 0)
    assert [(engine.positions, engine.has_results) for engine in cluster.engines] == [([0], True)] * 2
    cluster.new_epoch()
    assert all(engine.has_results for engine in cluster.engines)


# --- what cannot be gone on with ---


@pytest.mark.parametrize("block", [-1, 1_000_000])
def test_a_block_that_is_not_kept_is_refused(block: int) -> None:
    cluster, _ = running(rounds=10)
    engine = cluster.engines[0]
    assert engine.state.shards["snd_nxt"][0] > 2 * WINDOW
    with pytest.raises(ValueError, match=f"the new epoch starts at block {block}"):
        engine.resume(replace(engine.epoch, shards=(replace(engine.epoch.shards[0], resume_block=block),)), cluster.now)


def test_a_block_that_this_rank_lacks_cannot_be_passed_over() -> None:
    cluster, _ = running()
    engine = cluster.engines[0]
    shard = replace(engine.epoch.shards[0], resume_block=engine.positions[0] + 1)
    with pytest.raises(ValueError, match="the new epoch starts at block"):
        engine.resume(replace(engine.epoch, shards=(shard,)), cluster.now)


def test_another_number_of_slots_is_refused() -> None:
    """They may be others (`tests.host.sim` has them change), but what is kept is that of the last so many blocks."""
    cluster, _ = running()
    engine = cluster.engines[0]
    shard = replace(engine.epoch.shards[0], lease=Lease(0, 4 * WINDOW), resume_block=engine.positions[0])
    with pytest.raises(ValueError, match=rf"with {4 * WINDOW} slots; .* and has {2 * WINDOW} slots"):
        engine.resume(replace(engine.epoch, shards=(shard,)), cluster.now)


def test_another_number_of_shards_is_refused() -> None:
    cluster, _ = running()
    engine = cluster.engines[0]
    with pytest.raises(ValueError, match="the new epoch has 2 shards, and the job had 1"):
        engine.resume(replace(engine.epoch, shards=engine.epoch.shards * 2), cluster.now)


# --- the generations run out ---

LAST = 2 * WINDOW * GENERATION_MAX
"""The first block whose generation is 1 again."""


def test_no_block_of_the_next_round_is_sent_in_this_epoch() -> None:
    cluster, _ = running(rounds=20, first=LAST - 10)
    assert all(engine.exhausted for engine in cluster.engines)
    assert [engine.positions for engine in cluster.engines] == [[LAST], [LAST]]
    assert cluster.exchange() == 0


def test_a_new_epoch_goes_on_in_the_next_round() -> None:
    cluster, outs = running(rounds=20, first=LAST - 10)
    cluster.new_epoch(forget=False)
    assert not any(engine.exhausted for engine in cluster.engines)
    assert [datagram.header.generation for datagram in cluster.send(0)] == [1] * WINDOW
    cluster.run(step_s=0.1)
    assert outs[0].tobytes() == outs[1].tobytes()
    assert np.corrcoef(outs[0], values(0) + values(1))[0, 1] > 0.9


def test_an_engine_is_not_exhausted_before() -> None:
    cluster, _ = running(rounds=20)
    assert not any(engine.exhausted for engine in cluster.engines)
