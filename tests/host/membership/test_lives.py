"""What else may happen in the life of a rank: it breaks before it is used, cannot join again, or is forked."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inagg_host import allreduce
from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.config import ConfigError
from inagg_host.core import Engine
from inagg_host.membership import reachability, reconnector
from inagg_host.membership.fallback import REASON
from inagg_host.membership.network import LAST_S, Network
from inagg_host.membership.session import Loss, Session
from inagg_link.addresses import resolved
from inagg_link.around import LinkAround
from inagg_link.base import Batch, Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_testbed.switch_process import SwitchProcess
from inagg_wire import header as wire
from inagg_wire.layout import Op

from .groups import Meeting
from .processes import start_switch

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


def test_a_network_that_breaks_before_it_is_used_fails_what_comes(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()

    class Brief(Network):
        """It breaks when it is made, and says so before its maker has it."""

        def __init__(self, *arguments: Any) -> None:
            config, counters, finished, broken, *others = arguments

            def tell(network: Network, failure: AllReduceError) -> None:
                broken(network, failure)
                told.set()

            super().__init__(config, counters, finished, tell, *others)
            self._break(AllReduceError("it broke at once"))
            assert told.wait(PATIENCE_S)

    monkeypatch.setattr(allreduce, "Network", Brief)
    with (
        AllReduce(switch=switch.control, rank=0, workers=1, job="brief") as all_reduce,
        pytest.raises(AllReduceError, match="it broke at once"),
    ):
        all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S)


def test_an_address_that_this_machine_lacks_is_an_error_that_names_the_variable(switch: SwitchProcess) -> None:
    with pytest.raises(AllReduceError, match=r"cannot send datagrams from 192\.0\.2\.1: .*INAGG_HOST"):
        AllReduce(switch=switch.control, rank=0, workers=1, host="192.0.2.1")


def test_a_file_of_keys_that_is_not_there_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"cannot read /not/there: No such file.*INAGG_CA"):
        AllReduce(switch="127.0.0.1:9", rank=0, workers=1, ca="/not/there")


@pytest.mark.parametrize("lasts", [False, True])
def test_a_name_that_cannot_be_resolved_for_a_while_is_asked_for_again(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """When a rank joins again. Where it lasts, that is an error, and soon."""
    failing, asked = threading.Event(), threading.Event()

    def flaky(host: str) -> str:
        if failing.is_set():
            asked.set()
            if not lasts:
                failing.clear()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolved(host)

    monkeypatch.setattr("inagg_host.membership.session.resolved", flaky)
    options: dict[str, Any] = {"switch": switch.control, "job": f"names-{lasts}", "reconnect_s": 0.5}
    with AllReduce(rank=0, workers=1, **options) as all_reduce:
        network = all_reduce._network
        assert network is not None
        failing.set()
        network._on_loss(Loss("for a test"))
        assert asked.wait(PATIENCE_S)  # nothing is sent any more; before, the sum could still be made
        if lasts:
            with pytest.raises(AllReduceError, match=r"a new epoch could not begin: .*name resolution"):
                all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S)
        else:
            assert (all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S) == 1).all()


def test_whatever_is_raised_while_joining_again_is_an_error_of_what_waits(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="again") as all_reduce:
        network = all_reduce._network
        assert network is not None

        asked = threading.Event()

        def fail(*_: Any, **__: Any) -> Any:
            asked.set()
            raise OSError("no more files")

        monkeypatch.setattr(network._session, "join", fail)
        network._on_loss(Loss("for a test"))
        assert asked.wait(PATIENCE_S)
        with pytest.raises(AllReduceError, match="no more files"):
            all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S)


def wait_for(what: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_job_that_was_left_is_freed_at_once(switch: SwitchProcess) -> None:
    """Rings and sockets are not for the garbage collector to find, which in a training may not look for long."""
    all_reduce = AllReduce(switch=switch.control, rank=0, workers=1, job="freed")
    with all_reduce:
        all_reduce(np.ones(100, np.float32))
    network = all_reduce._network
    assert network is not None
    # Not the session, which is small: gRPC's stream, when it is cancelled, may be in a circle with its own traceback.
    parts = [weakref.ref(part) for part in (all_reduce, network, network.transport, network.engine)]
    del all_reduce, network
    wait_for(lambda: [part() for part in parts] == [None] * len(parts))


def test_an_error_that_is_kept_keeps_nothing_of_those_who_were_told_of_it(switch: SwitchProcess) -> None:
    """A traceback has the frames of who raises, and these have tensors."""
    with AllReduce(switch=switch.control, rank=0, workers=1, job="kept", wrap_link=Withheld) as all_reduce:
        network, gone = all_reduce._network, list[weakref.ref[Any]]()
        assert network is not None

        def wait() -> None:
            tensor = np.ones(100, np.float32)
            gone.append(weakref.ref(tensor))
            work = all_reduce.submit(tensor)
            network._break(AllReduceError("it broke"))
            work.result(PATIENCE_S)

        def submit() -> None:
            tensor = np.ones(100, np.float32)
            gone.append(weakref.ref(tensor))
            all_reduce.submit(tensor)

        def ask() -> None:
            tensor = np.ones(100, np.float32)
            gone.append(weakref.ref(tensor))
            assert all_reduce.chunk, tensor

        for call in (wait, submit, ask):
            with pytest.raises(AllReduceError, match="it broke"):
                call()
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3
        assert str(all_reduce.failure) == "it broke"


def in_a_child(call: Any) -> int:
    """Call it in a process that is forked, which then ends as Python does; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def test_a_forked_process_neither_leaves_nor_ends_the_job(switch: SwitchProcess) -> None:
    """With whatever it does at its end."""
    ready, go_on = threading.Barrier(2), threading.Barrier(2)

    def run(rank: int) -> float:
        with AllReduce(switch=switch.control, rank=rank, workers=2, job="forks") as all_reduce:
            all_reduce(np.ones(100, np.float32))
            ready.wait(PATIENCE_S)
            if rank == 0:
                begun = all_reduce.submit(np.ones(100, np.float32))

                def end() -> None:
                    for call in (begun.result, begun.exception):
                        with pytest.raises(AllReduceError, match="forked"):
                            call()
                    with pytest.raises(AllReduceError, match="forked"):
                        all_reduce.submit(np.ones(100, np.float32))
                    all_reduce.close("it has failed", end=True)
                    all_reduce.close()
                    assert all_reduce.counters.operations == 1

                assert in_a_child(end) == 0
            go_on.wait(PATIENCE_S)
            if rank == 0:
                return float(begun.result(PATIENCE_S)[0])
            return float(all_reduce(np.ones(100, np.float32))[0])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [2.0, 2.0]


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e12])
def test_a_rank_that_waits_for_ever_can_be_closed(switch: SwitchProcess, timeout_s: float) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="patient", timeout_s=timeout_s) as all_reduce:
        work, called = all_reduce.submit(np.ones(100, np.float32)), threading.Event()
        work.add_done_callback(lambda _: called.wait(0.1))
        assert work.result(PATIENCE_S)[0] == 1.0


def test_who_joins_again_goes_when_it_is_closed_meanwhile(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transport calls nothing any more."""
    with AllReduce(switch=switch.control, rank=0, workers=1, job="closed-meanwhile") as all_reduce:
        network, posted = all_reduce._network, threading.Event()
        assert network is not None
        monkeypatch.setattr(network.transport, "post", lambda call: posted.set())
        network._on_loss(Loss("for a test"))
        assert posted.wait(PATIENCE_S)
    (again,) = [thread for thread in threading.enumerate() if thread.name == "inagg-rejoin"] or [threading.Thread()]
    if again.ident is not None:
        again.join(PATIENCE_S)
    assert not again.is_alive()


def no_thread(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Threads of these names cannot be started."""
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)


def test_who_waits_hears_that_all_is_over_though_there_are_no_more_threads(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="no-thread", wrap_link=Withheld) as all_reduce:
        work, network = all_reduce.submit(np.ones(100, np.float32)), all_reduce._network
        assert network is not None
        no_thread(monkeypatch, "inagg-over", "inagg-broken")
        network._on_loss(Loss("enough", final=True))
        with pytest.raises(AllReduceError, match=r"is over: enough$"):
            work.result(PATIENCE_S)


def test_all_fails_where_there_is_no_thread_to_fall_back_on(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = Meeting(1).groups()
    options: dict[str, Any] = {"switch": switch.control, "rank": 0, "workers": 1, "job": "no-fallback"}
    with AllReduce(policy="fallback", inner=group, wrap_link=Withheld, **options) as all_reduce:
        work, network = all_reduce.submit(np.ones(100, np.float32)), all_reduce._network
        assert network is not None
        no_thread(monkeypatch, "inagg-fallback")
        network._break(AllReduceError("it broke"))
        why = r"^it broke; nor can the inner group be used: can't start new thread$"
        with pytest.raises(AllReduceError, match=why):
            work.result(PATIENCE_S)
        with pytest.raises(AllReduceError, match=why):
            all_reduce.submit(np.ones(100, np.float32))


def test_attempts_to_come_back_are_not_logged_as_long_as_the_switch_stays_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inagg_host.membership.calls.WORD_OF_SWITCH_AFTER_S", 0.0)
    monkeypatch.setattr("inagg_host.membership.reconnector.RETRY_S", 0.01)
    (group,) = Meeting(1).groups()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        options: dict[str, Any] = {"switch": f"127.0.0.1:{port},localhost:{port}", "rank": 0, "workers": 1}
        with (
            caplog.at_level("DEBUG", "inagg"),
            AllReduce(policy="fallback", inner=group, job="away", reconnect_s=0.1, **options) as all_reduce,
        ):
            assert all_reduce(np.ones(100, np.float32))[0] == 1.0
            give_up_s = time.monotonic() + PATIENCE_S
            while caplog.text.count("not back yet") < 3:
                assert time.monotonic() < give_up_s
                time.sleep(0.01)
    said = [record.message for record in caplog.records if record.levelname != "DEBUG"]
    assert [sum(words in line for line in said) for words in ("tries again", "trying the one at")] == [1, 1]


class Withheld(LinkAround):
    """A link whose sums come when it is told so, as to a process that waits for its turn on a processor."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.come = threading.Event()
        self._held: list[Batch] = []

    @property
    def next_due_s(self) -> float | None:
        """All the time: whoever waits on the descriptor would not learn of what was received."""
        return time.monotonic() + 0.001 if self._held else super().next_due_s

    def receive(self, timeout_s: float) -> list[Batch]:
        """What has come, but for sums."""
        others = list[Batch]()
        for batch in super().receive(timeout_s):
            is_sum = wire.parse(batch.data[: batch.size].tobytes()).header.op is Op.SUM
            (self._held if is_sum else others).append(batch)
        if self.come.is_set():
            others, self._held = [*others, *self._held], []
        return others


@pytest.mark.parametrize("comes", [True, False])
def test_sums_that_have_come_are_there_though_another_rank_has_ended_the_job(
    switch: SwitchProcess, comes: bool
) -> None:
    links = list[Withheld]()
    options: dict[str, Any] = {"switch": switch.control, "workers": 2, "job": f"early-{comes}"}

    def wrap(link: Link) -> Link:
        links.append(Withheld(link))
        return links[0]

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(AllReduce, rank=1, wrap_link=wrap, **options)
        with AllReduce(rank=0, **options) as mine:
            theirs = other.result(PATIENCE_S)
            values = np.ones(1000, np.float32)
            work = theirs.submit(values)
            mine(np.ones(1000, np.float32))
            mine.close("enough", end=True)
        with theirs:
            if comes:
                time.sleep(LAST_S / 4)
                links[0].come.set()
                assert work.result(PATIENCE_S)[0] == 2.0
            with pytest.raises(AllReduceError, match=rf"^job 'early-{comes}' is over: .*: enough$"):
                (theirs.submit(values) if comes else work).result(PATIENCE_S)


def test_a_rank_that_hears_by_its_heartbeat_alone_that_another_has_ended_the_job_does_not_begin_it_anew(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "_listen", lambda session: None)  # as if it came later than a heartbeat
    options: dict[str, Any] = {"switch": switch.control, "workers": 2, "job": "ended", "heartbeat_limit_s": 2.0}
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(AllReduce, rank=1, **options)
        with AllReduce(rank=0, **options) as mine:
            theirs = other.result(PATIENCE_S)
            work = theirs.submit(np.ones(1000, np.float32))
            mine.close("enough", end=True)
        with theirs, pytest.raises(AllReduceError, match=r"^job 'ended' is over: .*: enough$"):
            work.result(PATIENCE_S)


def test_whatever_is_raised_where_the_thread_waits_is_an_error_of_what_waits(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="waits", wrap_link=Withheld) as all_reduce:

        def fail(engine: Engine) -> float:
            raise OSError("no more files")

        monkeypatch.setattr(Engine, "deadline", property(fail))
        with pytest.raises(AllReduceError, match="no more files"):
            all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S)


def test_a_rank_that_can_start_no_thread_after_it_has_joined_is_no_rank_any_more(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "inagg-transport":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(AllReduceError, match="raise the limit of processes"):
        AllReduce(switch=switch.control, rank=0, workers=1, job="threads")
    monkeypatch.undo()
    with AllReduce(switch=switch.control, rank=0, workers=1, job="threads") as all_reduce:  # the name is free
        assert (all_reduce(np.ones(100, np.float32)) == 1).all()


def test_where_control_passes_and_no_datagram_does_the_inner_group_goes_on_soon(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the sums do not come back to wait again, as they would if a joined job were way enough."""
    monkeypatch.setattr(reachability, "AFTER_S", 0.3)
    monkeypatch.setattr(reachability, "RECHECK_S", 1.0)
    monkeypatch.setattr(reconnector, "RETRY_S", 0.01)
    monkeypatch.setattr(reconnector, "TRIAL_S", 0.5)
    groups = Meeting(2).groups()
    tried = threading.Event()

    def rank(number: int) -> tuple[list[float], dict[str, int]]:
        with AllReduce(
            switch=switch.control, rank=number, workers=2, job="no-udp", policy="fallback", inner=groups[number],
            timeout_s=300, wrap_link=lambda link: FaultLink(link, Faults(drop=1.0), seed=number),
        ) as all_reduce:  # fmt: skip
            sums = [float(all_reduce(np.ones(100, np.float32))[0])]
            tried.wait(PATIENCE_S)
            sums += [float(all_reduce(np.ones(100, np.float32))[0]) for _ in range(3)]
            return sums, dict(all_reduce.counters.inner)

    def look() -> None:
        while "nothing that it sends to UDP" not in caplog.text:
            time.sleep(0.01)
        tried.set()

    with ThreadPoolExecutor(3) as pool:
        looking = pool.submit(look)
        assert list(pool.map(rank, range(2))) == [([2.0] * 4, {REASON: 4})] * 2
        looking.result(PATIENCE_S)
    assert "of what it sends the switch counts nothing: does a firewall let UDP pass" in caplog.text
