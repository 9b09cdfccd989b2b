"""What of a switch's receive buffers each rank may fill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inagg_switch.control.credit import Credit, block_bytes
from inagg_switch.control.jobs import Job
from inagg_wire.formats import job_format
from inagg_wire.layout import datagram_bytes

from .world import LIMITS, RecordingDriver, World, spec

LANES, WINDOW = 1024, 64
BLOCK = datagram_bytes(job_format("nat8").up, LANES)


def world(receive_bytes: int | None) -> World:
    return World(driver=RecordingDriver(limits=replace(LIMITS, receive_bytes=receive_bytes)))


def run(w: World, name: str, workers: int) -> Job:
    w.join_all(spec(name, workers, WINDOW, lanes=LANES))
    return w.job(name)


def test_a_switch_that_does_not_know_gives_the_window() -> None:
    w = world(None)
    assert w.registry.credit(run(w, "a", 4)) == WINDOW


def test_large_buffers_give_no_more_than_the_window() -> None:
    w = world(1 << 30)
    assert w.registry.credit(run(w, "a", 4)) == WINDOW


@pytest.mark.parametrize("workers", [1, 3, 32])
def test_what_all_ranks_may_have_out_fits_the_buffer(workers: int) -> None:
    room = 40 * workers * BLOCK + 5
    w = world(room)
    assert w.registry.credit(run(w, "a", workers)) == 40


def test_jobs_share_the_buffer_by_rank_and_get_it_back() -> None:
    w = world(12 * 10 * BLOCK)
    first = run(w, "a", 4)
    assert w.registry.credit(first) == 30
    second = run(w, "b", 8)
    assert w.registry.credit(first) == w.registry.credit(second) == 10
    w.registry.evict(w.now, "b", "")
    w.pump()
    assert w.registry.credit(first) == 30


def test_everybody_may_have_one_block_out() -> None:
    w = world(BLOCK)
    assert w.registry.credit(run(w, "a", 4)) == 1


def test_a_job_whose_epoch_is_over_leaves_the_buffer_to_others() -> None:
    w = world(8 * 10 * BLOCK)
    first, second = run(w, "a", 4), run(w, "b", 4)
    assert w.registry.credit(first) == 10
    w.registry.shard_restarted(w.now, 0)
    assert first.epochs.running is second.epochs.running is None
    w.join_all(spec("a", 4, WINDOW, lanes=LANES))
    assert w.registry.credit(first) == 20


def test_blocks_that_come_in_parts_count_whole() -> None:
    w = world(None)
    binding = run(w, "a", 2).epochs.running
    assert binding is not None
    (flat,) = binding.by_switch[""]
    assert block_bytes(flat) == BLOCK
    assert Credit(lambda name: 10 * 2 * BLOCK).blocks(binding, WINDOW) == 10
