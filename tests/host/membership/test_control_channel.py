"""The way to a switch: names that are not known yet, the next of several, and a switch that says nothing."""

from __future__ import annotations

import errno
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.config import Config, ConfigError
from inagg_host.errors import CLOSED_JOINING
from inagg_host.membership import calls, control_channel, session
from inagg_host.membership.session import Loss, Session
from inagg_link.addresses import resolved, split_address
from inagg_link.base import Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_proto import KEEPALIVE
from inagg_switch.service import server
from inagg_switch.service.control_client import ControlClient
from inagg_switch.service.peers import own_host
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

PATIENCE_S = 10.0
UNKNOWN = "not-there.invalid"
LATE = "localhost"


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was asked for; only literal addresses are known at once, and the name `LATE` from the second time on."""
    monkeypatch.setattr(calls, "RETRY_S", 0.01)
    asked: list[str] = []

    def find(host: str) -> str:
        asked.append(host)
        if host == UNKNOWN or (host == LATE and asked.count(LATE) < 2):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolved("127.0.0.1" if host == LATE else host)

    monkeypatch.setattr(f"{session.__name__}.resolved", find)
    return asked


def session_of(switch: str, **fields: Any) -> Session:
    config = Config(**{"switch": switch, "rank": 0, "workers": 1, **fields})
    return Session(config, lambda _: None, lambda _: None, lambda: None, lambda: None)


def test_a_name_that_is_not_known_yet_is_asked_for_again(switch: SwitchProcess, names: list[str]) -> None:
    _, _, port = switch.control.rpartition(":")
    with closing(session_of(f"{LATE}:{port}")) as ours:
        assert ours.local_host() == "127.0.0.1"
    assert names == [LATE, LATE]


def test_a_name_that_stays_unknown_is_an_error(names: list[str]) -> None:
    with (
        closing(session_of(f"{UNKNOWN}:9", reconnect_s=0.02)) as ours,
        pytest.raises(calls.SessionError, match=r"no way to the switch at .*Name or service not known"),
    ):
        ours.local_host()


@pytest.mark.usefixtures("names")
def test_where_the_name_of_one_switch_is_unknown_the_next_is_tried(switch: SwitchProcess) -> None:
    with AllReduce(switch=f"{UNKNOWN}:9,{switch.control}", rank=0, workers=1, job="next") as all_reduce:
        assert (all_reduce(np.ones(8, np.float32)) == 1).all()


def test_the_way_to_the_next_switch_may_begin_at_another_address(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one switch goes between saying where its data goes and the join."""
    ways: list[Link] = []

    def noted(link: Link) -> Link:
        ways.append(link)
        return link

    def found(host: str, port: int) -> tuple[str, str]:
        first.kill()
        return ("127.0.0.1" if ways else "127.0.0.2"), host

    monkeypatch.setattr(session, "ends_of_way", found)
    with (
        SwitchProcess() as first,
        AllReduce(
            switch=f"{first.control},{switch.control}", rank=0, workers=1, job="elsewhere", wrap_link=noted
        ) as all_reduce,
    ):
        assert (all_reduce(np.ones(8, np.float32)) == 1).all()
        assert [link.address[0] for link in ways[1:]] == ["127.0.0.1"]
        with pytest.raises((OSError, ValueError)):
            ways[0].receive(0.0)  # closed


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_the_way_is_that_of_the_data_where_control_has_another() -> None:
    with (
        SwitchProcess(data="[::1]:0") as switch,
        AllReduce(switch=switch.control, rank=0, workers=1, job="apart") as all_reduce,
    ):
        assert (all_reduce(np.ones(8, np.float32)) == 1).all()


@pytest.fixture(scope="module")
def everywhere() -> Iterator[SwitchProcess]:
    """Takes calls and data at all addresses of its machine; answers to this machine leave from 127.0.0.1."""
    with SwitchProcess("--insecure", control="0.0.0.0:0", data="0.0.0.0:0") as switch:
        yield switch


def named(host: str, switch: SwitchProcess) -> str:
    return f"{host}:{switch.control.rpartition(':')[2]}"


@pytest.mark.parametrize("own", [None, "127.0.0.3"])
def test_results_come_whichever_address_of_the_switch_a_rank_has_named(
    everywhere: SwitchProcess, own: str | None
) -> None:
    with AllReduce(switch=named("127.0.0.2", everywhere), rank=0, workers=1, job="far", host=own) as all_reduce:
        assert (all_reduce(np.ones(8, np.float32)) == 1).all()


@pytest.mark.parametrize(
    ("reached", "caller", "own"),
    [
        ("127.0.0.2", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", ""),
        ("192.0.2.200", "127.0.0.1", ""),  # of a machine that translates addresses
        ("::1", "127.0.0.1", ""),
        ("localhost", "127.0.0.1", ""),
        ("127.0.0.2", "localhost", ""),
        ("", "", ""),
    ],
)
def test_a_switch_knows_from_where_it_answers(reached: str, caller: str, own: str) -> None:
    assert own_host(reached, caller) == own


def test_results_come_in_a_tree_whichever_addresses_were_named(everywhere: SwitchProcess) -> None:
    with (
        SwitchProcess(
            "--insecure", "--name", "leaf", "--parent", named("127.0.0.3", everywhere), control="0.0.0.0:0",
            data="0.0.0.0:0",
        ) as leaf,
        SwitchProcess(
            "--insecure", "--name", "below", "--parent", named("127.0.0.4", leaf), control="0.0.0.0:0",
            data="0.0.0.0:0",
        ) as below,
    ):  # fmt: skip
        for host in ("127.0.0.1", "127.0.0.2"):
            for switch in (leaf, below):
                with AllReduce(switch=named(host, switch), rank=0, workers=1, job="high") as all_reduce:
                    assert (all_reduce(np.ones(8, np.float32)) == 1).all()


def test_where_there_is_no_way_to_the_data_the_error_says_where_it_goes(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(host: str, port: int) -> tuple[str, str]:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(session, "ends_of_way", none)
    with pytest.raises(
        AllReduceError, match=r"no way to 127\.0\.0\.1, where the data of the switch at .* goes: .*unreachable"
    ):
        AllReduce(switch=switch.control, rank=0, workers=1, job="nowhere", reconnect_s=0.1)


def test_a_rank_on_loopback_that_would_go_on_elsewhere_is_told_how(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="away") as all_reduce:
        network = all_reduce._network
        assert network is not None
        monkeypatch.setattr(session, "ends_of_way", lambda host, _: ("10.0.0.2", host))
        network._on_loss(Loss("for a test"))
        give_up_s = time.monotonic() + PATIENCE_S
        while all_reduce.failure is None:
            assert time.monotonic() < give_up_s
            time.sleep(0.001)
        with pytest.raises(AllReduceError, match=r"sends from 127\.0\.0\.1, .*with INAGG_HOST=10\.0\.0\.2"):
            all_reduce.submit(np.ones(8, np.float32))


def test_a_rank_can_wait_for_the_others_for_ever(switch: SwitchProcess) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="ever", join_timeout_s=math.inf) as all_reduce:
        assert (all_reduce(np.ones(8, np.float32)) == 1).all()


def test_a_switch_that_does_not_answer_has_said_nothing(switch: SwitchProcess) -> None:
    with pytest.raises(AllReduceError, match=r"has not answered in time; `inagg doctor` looks at the way$"):
        AllReduce(switch=switch.control, rank=0, workers=2, job="silent", join_timeout_s=1e-9)


def test_whoever_asks_why_on_a_channel_that_was_closed_meanwhile_hears_nothing(switch: SwitchProcess) -> None:
    """Limits of time are kept on the thread that asks: it must not end by that."""
    with closing(session_of(switch.control)) as ours:
        ours.calls.close()
        assert ours.calls.why() == ""


def test_where_nothing_arrives_the_error_says_what_was_sent_for_nothing(switch: SwitchProcess) -> None:
    def lossy(link: Link) -> Link:
        return FaultLink(link, Faults(drop=1.0), seed=1)

    with (
        AllReduce(switch=switch.control, rank=0, workers=1, job="hole", timeout_s=0.3, wrap_link=lossy) as all_reduce,
        pytest.raises(
            AllReduceError,
            match=r"nothing of rank 0 has come yet .*Meanwhile this rank sent \d+ datagrams, \d+ of them again, and 0 ",
        ),
    ):
        all_reduce(np.ones(8, np.float32))


def test_a_way_that_begins_at_an_address_of_one_link_names_the_variable(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ends_of_way", lambda host, _: ("fe80::1", host))
    with closing(session_of(switch.control)) as ours, pytest.raises(ConfigError, match=r"one link alone.*INAGG_HOST"):
        ours.local_host()


def test_a_host_in_brackets_is_taken(switch: SwitchProcess) -> None:
    with closing(session_of(switch.control, host="[127.0.0.1]")) as ours:
        assert ours.local_host() == "127.0.0.1"


def test_a_rank_that_tries_for_long_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "WORD_OF_SWITCH_AFTER_S", 0.1)
    monkeypatch.setattr(calls, "RETRY_S", 0.02)
    with closing(session_of("127.0.0.1:9", reconnect_s=0.4)) as ours, pytest.raises(calls.SessionError):
        ours.join(lambda: (ours.local_host(), 5))
    (record,) = caplog.records
    said, _, why = record.getMessage().partition(": ")
    assert said == "rank 0 of job 'default' tries again, for 0.4 s in all (INAGG_RECONNECT)"
    assert why.startswith("cannot reach the switch at 127.0.0.1:9")


def test_a_switch_that_takes_no_new_jobs_has_answered() -> None:
    with start_switch() as switch:
        with ControlClient(switch.control) as client:
            client.drain()
        with pytest.raises(AllReduceError, match=f"the switch at {switch.control} says: job 'new' cannot begin here"):
            AllReduce(switch=switch.control, rank=0, workers=1, job="new", reconnect_s=0.1)


class Refusal(grpc.RpcError):
    """A call that has failed as `Calls.explain` sees it."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self._code, self._text = code, text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "switch 'rack1' cannot be part of this tree: it has 2 shards, and the root 1: start it with --shards 1",
            "switch 'rack1' cannot be part of this tree: it has 2 shards, and the root 1: start it with --shards 1",
        ),
        (
            "switch 'rack1' does not reach its parent at 10.0.0.1:47100: failed to connect to all addresses; last "
            "error: UNKNOWN: ipv4:10.0.0.1:47100: Connection refused",
            "switch 'rack1' does not reach its parent at 10.0.0.1:47100: Connection refused",
        ),
    ],
)
def test_a_switch_that_says_what_is_wrong_in_its_tree_is_not_said_to_be_out_of_reach(text: str, said: str) -> None:
    with closing(session_of("127.0.0.1:9")) as ours:
        explained = ours.calls.explain(Refusal(grpc.StatusCode.UNAVAILABLE, text))
    assert str(explained) == f"the switch at 127.0.0.1:9 says: {said}"
    assert explained.code in calls.NOT_THERE, "it is tried again"


def test_a_rank_that_has_waited_for_others_looks_for_the_switch_as_long_as_one_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not shorter, by what it has waited."""
    monkeypatch.setattr(session, "CALL_S", 0.3)
    ended_s: list[float] = []

    def end() -> None:
        ended_s.append(time.monotonic())
        first.kill()

    with SwitchProcess() as first, closing(session_of(first.control, reconnect_s=0.5, workers=2)) as ours:
        waiting = threading.Timer(1.0, end)
        waiting.start()
        with pytest.raises(calls.SessionError, match=f"cannot reach the switch at {first.control}"):
            ours.join(lambda: ("127.0.0.1", 5))
        waiting.join()
        assert ours.calls._began_s > ended_s[0]


def test_that_several_switches_take_turns_is_told_once_for_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "RETRY_S", 0.02)
    with (
        closing(session_of("127.0.0.1:9,127.0.0.1:10", reconnect_s=0.4)) as ours,
        pytest.raises(calls.SessionError) as raised,
    ):
        ours.join(lambda: (ours.local_host(), 5))
    last, _, other = str(raised.value).partition("; nor was the one at ")
    assert other in ("127.0.0.1:9 there", "127.0.0.1:10 there")
    assert last.startswith(f"cannot reach the switch at 127.0.0.1:{'9' if '10' in other else '10'}: ")
    assert [record.getMessage().rpartition("; ")[2] for record in caplog.records] == [
        "trying the one at 127.0.0.1:10", "trying the one at 127.0.0.1:9",
    ]  # fmt: skip


def test_a_closed_rank_tries_no_other_switch() -> None:
    """Its `close` would not know of that connection."""
    with closing(session_of("127.0.0.1:9,127.0.0.1:10")) as ours:
        ours.calls.stop()
        with pytest.raises(calls.SessionError) as caught:
            ours.calls.try_again(calls.SessionError("not there", grpc.StatusCode.UNAVAILABLE))
        assert str(caught.value) == CLOSED_JOINING
        assert ours.calls.address == "127.0.0.1:9"


# --- a connection on which nothing passes any more ---


class Filter:
    """Passes connections on to ``target``, host:port, from ``address``. `shut`: on those that there are then nothing
    passes any more, and neither end hears of it; later ones pass."""

    def __init__(self, target: str) -> None:
        self._target = split_address(target)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._held: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """From now on."""
        self._held = set(self._ends)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ends = self._server.accept()[0], socket.create_connection(self._target)
                self._ends += ends
                for source, sink in (ends, ends[::-1]):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._held:
                    sink.sendall(data)
            if source not in self._held:
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Of all."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in self._ends:
            end.close()


def test_a_connection_on_which_nothing_passes_any_more_is_given_up_for_a_new_one(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that opens again lets new connections pass at once; in the old one, TCP may not try for minutes."""
    shorter = [(name, min(value, 200)) for name, value in KEEPALIVE]
    monkeypatch.setattr(control_channel, "KEEPALIVE", tuple(shorter))
    with (
        closing(Filter(switch.control)) as between,
        closing(session_of(between.address, reconnect_s=PATIENCE_S)) as ours,
    ):
        assert ours.local_host() == "127.0.0.1"
        between.shut()
        ours.calls.begin()
        assert ours.local_host() == "127.0.0.1"


def test_the_system_ends_a_connection_of_a_rank_whose_other_end_acknowledges_nothing(switch: SwitchProcess) -> None:
    """Before they have missed so many heartbeats that they count the switch as gone, and not before one is late."""
    with closing(session_of(switch.control)) as ours:
        ours.local_host()
        limits_ms = set[int]()
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(number))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host, port, *_ = connection.getpeername()  # gRPC's are of IPv6, also to addresses of IPv4
                if (host.removeprefix("::ffff:"), port) == split_address(switch.control):
                    limits_ms.add(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    (limit_ms,) = limits_ms
    assert calls.CALL_S < limit_ms / 1000 < calls.CALL_S * session.HEARTBEATS_MISSED


def test_a_switch_takes_the_pings_of_ranks_and_commands() -> None:
    """With time to spare: it would end their connections. And a switch that is held for a while is not given up for
    them."""
    ours, theirs = dict(KEEPALIVE), dict(server.OPTIONS)
    assert ours["grpc.keepalive_time_ms"] >= 2 * theirs["grpc.http2.min_ping_interval_without_data_ms"]
    assert ours["grpc.http2.max_pings_without_data"] == 0, "else there are two, and then none"
    held_ms = session.HEARTBEATS_MISSED * calls.CALL_S * 1000
    assert ours["grpc.http2.ping_timeout_ms"] > held_ms, "heartbeats notice it first"
