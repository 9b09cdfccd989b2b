"""What becomes of a transport that gets no thread."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

import pytest

from inagg_host.core import Engine, Epoch, ShardLease
from inagg_host.io.transport import Transport
from inagg_host.stats import Counters
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


def test_one_that_gets_no_second_thread_says_so_and_can_be_closed(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = World(stack, 1).ranks
    monkeypatch.setattr(Engine, "awaited", property(lambda engine: True))
    monkeypatch.setattr(threading.Thread, "start", no_threads)
    rank.transport.submit(lambda: None)
    assert "new thread" in str(rank.failure())
    rank.transport.close()
