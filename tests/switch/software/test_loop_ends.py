"""What ends the switch's compiled loop: destinations that the kernel refuses, a broken link, commands, signals."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack

import numpy as np
import pytest
from tests.switch.aggregation.world import make_binding, simple_contribution

from inagg_link.base import Batch
from inagg_link.port import key_of
from inagg_switch.binding import Binding
from inagg_switch.software.data_plane import DataPlane

from .looping import LANES, Rig, needs_port

pytestmark = needs_port

PATIENCE_S = 20.0
REFUSED = ("127.255.255.255", 9)
"""A broadcast address: the kernel sends nothing there (EACCES) without SO_BROADCAST."""


def refuse_one_of_three(rig: Rig) -> Binding:
    """A job of three ranks; nothing can be sent to the middle one."""
    binding = make_binding(1, "nat8", 3, lanes=LANES, slots=64, children=rig.addresses(0, 1, 2))
    rig.bind(binding)
    rig.aggregator.tables.peers.address[0, 1] = key_of(REFUSED)
    return binding


def test_a_destination_that_the_kernel_refuses_keeps_nothing_from_the_others(rig: Rig) -> None:
    binding = refuse_one_of_three(rig)
    for rank in range(3):
        rig.send([simple_contribution(binding, rank, block) for block in range(40)], binding.children[rank])
    results = [
        data
        for rank in range(3)
        for data, to in rig.expect(
            [simple_contribution(binding, rank, block) for block in range(40)], binding.children[rank]
        )
        if to == binding.children[0]
    ]
    rig.serve()
    assert len(results) == 40
    assert rig.heard(0) == rig.heard(2) == results
    assert rig.heard(1) == []
    assert rig.pump.unsent == rig.link.counters.send_refused == 40
    assert set(rig.link.counters.errors) == {"EACCES"}


def test_what_was_not_sent_is_in_the_counters_of_the_data_plane() -> None:
    with ExitStack() as stack:
        rig = Rig(stack)
        plane = DataPlane(rig.link, rig.aggregator)
        binding = refuse_one_of_three(rig)
        for rank in range(3):
            rig.send([simple_contribution(binding, rank, 0)], binding.children[rank])
        left, right = os.pipe()
        stack.callback(os.close, left)
        stack.callback(os.close, right)

        class Once:
            """Commands: one, which ends the data plane when all has been taken."""

            def fileno(self) -> int:
                return left

            def poll(self, timeout: float = 0.0) -> bool:
                return True

        os.write(right, b"!")
        while plane.counters().datagrams_in < 3:
            plane.run(Once(), lambda: False)
        counters = plane.counters()
        assert (counters.datagrams_out, counters.send_refused) == (2, 1)


def test_empty_datagrams_do_not_stop_the_loop(rig: Rig) -> None:
    binding = make_binding(1, "nat8", 1, children=rig.addresses(0))
    rig.bind(binding)
    for block in range(3):
        rig.workers[0]._sendto(b"", rig.link.address)
        assert rig.exchange([([simple_contribution(binding, 0, block)], rig.workers[0].address)]) == 1
    assert rig.link.counters.empty == 3


def test_a_broken_link_is_an_error(rig: Rig) -> None:
    port = rig.link.port()
    assert port is not None
    rig.link.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        rig.pump.run(port, rig.bell)


# --- commands ---


def test_commands_are_looked_at_while_datagrams_keep_coming(rig: Rig) -> None:
    port, quiet, stop = rig.link.port(), os.eventfd(0, os.EFD_CLOEXEC), threading.Event()
    assert port is not None
    rig.pump.run(port, rig.bell)  # compiled
    noise = np.zeros(40 * 1000, np.uint8)

    def flood() -> None:
        while not stop.is_set():
            rig.stranger.send(Batch(noise, 1000, rig.link.address))

    flooding = threading.Thread(target=flood)
    serving = threading.Thread(target=rig.pump.run, args=(port, quiet))
    try:
        flooding.start()
        serving.start()
        os.eventfd_write(quiet, 1)
        serving.join(PATIENCE_S)
        assert not serving.is_alive()
    finally:
        stop.set()
        flooding.join()
        serving.join()
        os.close(quiet)
    assert rig.aggregator.counters().datagrams_in == sum(rig.aggregator.counters().drops.values())


def test_a_command_wakes_a_loop_that_waits(rig: Rig) -> None:
    port, quiet = rig.link.port(), os.eventfd(0, os.EFD_CLOEXEC)
    assert port is not None
    serving = threading.Thread(target=rig.pump.run, args=(port, quiet))
    serving.start()
    os.eventfd_write(quiet, 1)
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    os.close(quiet)


@pytest.mark.timeout(method="thread")  # this sets the timer that the other method has
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_a_signal_is_heard_by_a_loop_that_waits(rig: Rig) -> None:
    """Its handler is Python's."""
    port, quiet, heard = rig.link.port(), os.eventfd(0, os.EFD_CLOEXEC), threading.Event()
    assert port is not None
    rig.pump.run(port, rig.bell)  # compiled
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        rig.pump.run(port, quiet)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(quiet)
    assert heard.is_set()
