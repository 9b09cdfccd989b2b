"""What becomes of a transport that gets no thread, is closed, or has nothing to do."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from inagg_host.core import Engine, Epoch, ShardLease
from inagg_host.io.transport import Transport
from inagg_host.stats import Counters
from inagg_link.base import Batch
from inagg_link.udp import UdpLink
from inagg_wire.formats import job_format
from inagg_wire.slots import Lease

from .rig import LANES, World, no_threads


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
