"""What becomes of a transport that gets no thread, is closed, or has nothing to do."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from inagg_host.core import Engine, Epoch, Operation, ShardLease
from inagg_host.io.transport import Transport
from inagg_host.stats import Counters
from inagg_link.around import LinkAround
from inagg_link.base import Batch
from inagg_link.udp import UdpLink
from inagg_switch.binding import Binding
from inagg_wire.formats import job_format
from inagg_wire.slots import Lease

from .rig import JOB, LANES, PATIENCE_S, SEED, TOKEN, Switch, World, no_threads


def test_nothing_is_left_of_one_that_got_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes back to a switch makes one after the other."""
    monkeypatch.setattr(threading.Thread, "start", no_threads)
    with UdpLink() as link:
        shard = ShardLease(link.address, Lease(0, 4))
        engine = Engine(Epoch(1, 1, 1, job_format("nat8"), 1, 0, LANES, 0, (shard,)))
        before = os.listdir("/proc/self/fd")
        with pytest.raises(RuntimeError, match="new thread"):
            Transport(engine, link, Counters(), lambda _: None, lambda _: None)
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_nothing_is_left_of_one_that_was_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    link = UdpLink()
    shard = ShardLease(link.address, Lease(0, 4))
    engine = Engine(Epoch(1, 1, 1, job_format("nat8"), 1, 0, LANES, 0, (shard,)))
    Transport(engine, link, Counters(), lambda _: None, lambda _: None).close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("way", ["submit", "post"])
def test_what_comes_when_its_thread_has_ended_is_called_all_the_same(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Else what nobody begins would be waited for for ever."""
    (rank,) = World(stack, 1).ranks
    called = threading.Event()
    monkeypatch.setattr(rank.transport, "update_counters", lambda: getattr(rank.transport, way)(called.set))
    rank.transport.close()
    assert called.is_set()


def test_what_strangers_send_does_not_keep_one_awake_that_has_nothing_to_do(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = World(stack, 1).ranks
    waits, wait = list[object](), Transport._wait

    def counted(transport: Transport, poll: select.poll) -> None:
        waits.append(poll)
        wait(transport, poll)

    monkeypatch.setattr(Transport, "_wait", counted)
    stranger = stack.enter_context(UdpLink())
    stranger.send(Batch(np.zeros(88, np.uint8), 88, rank.link.address))
    time.sleep(0.1)
    assert len(waits) <= 2


def test_one_that_gets_no_second_thread_says_so_and_can_be_closed(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = World(stack, 1).ranks
    monkeypatch.setattr(Engine, "awaited", property(lambda engine: True))
    monkeypatch.setattr(threading.Thread, "start", no_threads)
    rank.transport.submit(lambda: None)
    assert "new thread" in str(rank.failure())
    rank.transport.close()


def test_what_goes_wrong_while_results_are_handed_out_is_told(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the thread that does it where a device waits, which nobody else looks after."""

    def fail(engine: Engine) -> list[Operation]:
        raise MemoryError("for a test")

    (rank,) = World(stack, 1).ranks
    monkeypatch.setattr(Engine, "awaited", property(lambda engine: True))
    rank.transport.submit(lambda: None)  # which starts the thread
    give_up_s = time.monotonic() + PATIENCE_S
    while rank.transport._collector is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    monkeypatch.setattr(Engine, "finished", fail)
    os.eventfd_write(rank.transport._bell, 1)
    assert isinstance(rank.failure(), MemoryError)


def test_who_closes_it_reminds_whoever_has_the_turn(stack: ExitStack) -> None:
    """Another thread may have read the event that was meant for him."""
    (rank,) = World(stack, 1).ranks
    transport, rings = rank.transport, select.poll()
    rings.register(transport._wake, select.POLLIN)
    closing = threading.Thread(target=transport.close, daemon=True)
    with transport._turn:
        closing.start()
        for _ in range(3):
            assert rings.poll(PATIENCE_S * 1e3), "it is not reminded again"
            os.eventfd_read(transport._wake)
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_it_goes_on_with_the_shards_of_the_epoch_that_begins(stack: ExitStack) -> None:
    """They are those of another switch, perhaps, and the ones before answer no more."""
    world = World(stack, 1)
    (rank,), lease, other = world.ranks, Lease(0, 128), Switch(128, LANES)
    stack.callback(other.close)
    other.serve(Binding(JOB, TOKEN, job_format("nat8"), LANES, lease, SEED, (rank.link.address,)))
    world.switches[0].aggregator.unbind(JOB)
    epoch = replace(rank.engine.epoch, number=2, shards=(ShardLease(other.link.address, lease),))

    def go_on() -> None:
        rank.transport.pause()
        rank.engine.resume(epoch, time.monotonic())
        rank.transport.proceed()

    rank.transport.post(go_on)
    mine = np.ones(100, np.float32)
    rank.submit(mine)
    rank.wait(1)
    assert (mine == 1).all()


class Gone(LinkAround):
    """A link from which nothing can be received any more."""

    def receive(self, timeout_s: float) -> list[Batch]:
        raise OSError("gone, for a test")


def test_what_goes_wrong_is_told_once(stack: ExitStack) -> None:
    """And not tried again and again, for as long as nobody closes it."""
    (rank,) = World(stack, 1, wrap=lambda _, link: Gone(link)).ranks
    rank.submit(np.ones(100, np.float32))
    assert "gone, for a test" in str(rank.failure())
    stranger = stack.enter_context(UdpLink())
    stranger.send(Batch(np.zeros(88, np.uint8), 88, rank.link.address))
    time.sleep(0.1)
    assert len(rank.wrong) == 1
