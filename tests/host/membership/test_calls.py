"""A rank's calls: what they tell the switch, how long they may take, and which are made again."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from inagg_host.core import Epoch, ShardLease
from inagg_host.errors import CLOSED_JOINING
from inagg_host.membership import calls
from inagg_host.membership.calls import CALL_S, LOOK_S, SessionError
from inagg_host.membership.session import LEAVES, Session
from inagg_link.addresses import Address
from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_wire.formats import job_format
from inagg_wire.slots import Lease

from .scripted import LANES, PATIENCE_S, WINDOW, ScriptedSwitch, join, member


def wait_for(what: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_S", 0.001)
    monkeypatch.setattr(calls, "STOP_POLL_S", 0.01)


# --- what they tell ---


def live(switch: ScriptedSwitch, session: Session) -> None:
    """All calls are made that a rank makes."""
    session.local_host()
    join(session)
    session.counted()
    session.calls.why()
    wait_for(lambda: {"Heartbeat", "Watch"} <= switch.requests.keys())
    session.close()
    assert len(switch.requests) == 7


@pytest.mark.parametrize(("secret", "brought"), [("s3cret", "Bearer s3cret"), (None, None)])
def test_each_call_brings_the_secret(secret: str | None, brought: str | None) -> None:
    """A switch that has one refuses a call without it: a heartbeat, say, and so the rank would be given up."""
    switch = ScriptedSwitch()
    with member(switch, secret=secret) as session:
        live(switch, session)
    assert switch.secrets == {call: {brought} for call in switch.requests}


def test_each_call_of_a_member_says_who_it_is() -> None:
    """Else another process of the same rank could not be told from it."""
    switch = ScriptedSwitch()
    with member(switch, job="told", rank=1, workers=3) as session:
        live(switch, session)
    of_members = [request for call in ("Join", "Heartbeat", "Watch", "Leave") for request in switch.requests[call]]
    ((number, rank),) = {(request.member, request.rank) for request in of_members}
    assert number > 0
    assert rank == 1
    named = [request for call in ("Heartbeat", "Watch", "Leave", "Stats", "Why") for request in switch.requests[call]]
    assert {request.name for request in named} == {"told"}


def test_two_sessions_of_one_rank_are_two_members() -> None:
    numbers = []
    for _ in range(2):
        switch = ScriptedSwitch()
        with member(switch) as session:
            join(session)
        numbers.append(switch.requests["Join"][0].member)
    assert len(set(numbers)) == 2


def test_a_join_says_what_job_it_is() -> None:
    switch = ScriptedSwitch()
    with member(
        switch, job="told", rank=1, workers=3, format="tern", lanes=64, window=8, seed=5, heartbeat_limit_s=4.0,
        rejoin_limit_s=6.0,
    ) as session:  # fmt: skip
        join(session)
    (request,) = switch.requests["Join"]
    spec = request.spec
    assert (spec.name, spec.workers, spec.format, spec.lanes, spec.window, spec.seed) == ("told", 3, "tern", 64, 8, 5)
    assert (spec.heartbeat_limit_s, spec.rejoin_limit_s) == (4.0, 6.0)


@pytest.mark.parametrize("multicast", [False, True])
def test_who_joins_again_says_what_it_has_and_takes(multicast: bool) -> None:
    switch = ScriptedSwitch()
    with member(switch, seed=5) as session:
        resume = session.resume(join(session), [3], True, "for a test")
        session.join(lambda: ("127.0.0.1", 5), resume, multicast=multicast)
    first, again = switch.requests["Join"]
    assert not first.HasField("resume")
    position = pb.Position(slots=2 * WINDOW, next_block=3)
    assert again.resume == pb.Resume(epoch=1, seed=5, shards=[position], reason="for a test", has_results=True)
    assert (again.multicast, again.protocol) == (multicast, PROTOCOL)


def test_who_joins_again_asks_for_what_the_switch_has_chosen() -> None:
    """The blocks that it keeps are of this size, also where another switch would choose another one."""
    switch = ScriptedSwitch()
    with member(switch) as session:
        join(session)
        join(session)
    asked = [(request.spec.lanes, request.spec.window) for request in switch.requests["Join"]]
    assert asked == [(0, 0), (LANES, WINDOW)]


def test_a_switch_is_told_the_address_that_datagrams_will_come_from() -> None:
    """It answers from the one of its own addresses that goes with it."""
    switch = ScriptedSwitch()
    with member(switch, host="127.0.0.3") as session:
        assert session.local_host() == "127.0.0.3"
    (request,) = switch.requests["DataPlanes"]
    assert (request.host, request.own) == ("127.0.0.1", "127.0.0.3")


def test_who_leaves_says_why_and_whether_all_is_over() -> None:
    for end in (False, True):
        switch = ScriptedSwitch()
        with member(switch) as session:
            join(session)
            session.close("enough", end)
        (request,) = switch.requests["Leave"]
        assert (request.reason, request.end) == ("enough", end)


@pytest.mark.parametrize(
    ("refusals", "tries"),
    [
        ([grpc.StatusCode.UNAVAILABLE], 2),
        ([grpc.StatusCode.UNAVAILABLE] * 100, LEAVES),
        ([grpc.StatusCode.NOT_FOUND] * 100, 1),
        ([grpc.StatusCode.DEADLINE_EXCEEDED] * 100, 1),
    ],
    ids=["not there once", "not there", "not known", "silent"],
)
def test_who_cannot_reach_the_switch_tries_to_leave_some_times(
    refusals: list[grpc.StatusCode], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others would wait for it, and never hear why it went."""
    monkeypatch.setattr("inagg_host.membership.session.RETRY_S", 0.001)
    switch = ScriptedSwitch()
    switch.refusals["Leave"] = refusals
    with member(switch) as session:
        join(session)
        session.close("enough", end=True)
    assert [(request.reason, request.end) for request in switch.requests["Leave"]] == [("enough", True)] * tries


def test_who_has_not_joined_leaves_nothing() -> None:
    switch = ScriptedSwitch()
    with member(switch) as session:
        session.local_host()
    assert "Leave" not in switch.requests


# --- what they are told ---


def test_an_epoch_is_what_the_switch_says() -> None:
    """A lease that names no host is where the switch was found."""

    class Other(ScriptedSwitch):
        def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
            reply = super().Join(request, context)
            reply.job, reply.epoch, reply.token, reply.credit, reply.scatters = 4, 9, 77, 20, True
            reply.shards[0].lease.address.host, reply.shards[0].resume_block = "", 6
            reply.shards.add(lease=pb.Lease(base=512, slots=8, address=pb.Address(host="127.0.0.2", port=10)))
            reply.shards[1].group.CopyFrom(pb.Address(host="239.255.0.1", port=11))
            return reply

    with member(Other(), workers=3, rank=2, seed=5) as session:
        session.local_host()
        epoch = join(session)
    shards = (
        ShardLease(("127.0.0.1", 9), Lease(0, 2 * WINDOW), 6, None),
        ShardLease(("127.0.0.2", 10), Lease(512, 8), 0, ("239.255.0.1", 11)),
    )
    assert epoch == Epoch(9, 4, 77, job_format("nat8"), 3, 2, LANES, 5, shards, 20, True)


def test_a_switch_that_names_no_room_gives_all_of_the_window() -> None:
    with member(ScriptedSwitch()) as session:
        assert join(session).credit is None


# --- how long they may take ---

ROUNDING = 1.02
"""Deadlines are sent as whole numbers of few digits, rounded up."""


def test_no_call_waits_for_a_switch_for_ever_but_the_one_that_watches() -> None:
    """Join waits for the others, as long as the options say."""
    switch = ScriptedSwitch()
    with member(switch, join_timeout_s=1000.0) as session:
        live(switch, session)
    limits_s = {call: limit_s / ROUNDING for call, limit_s in switch.limits_s.items()}
    assert limits_s.pop("Watch") > 1e6
    assert 900 < limits_s.pop("Join") <= 1000
    assert {call for call, limit_s in limits_s.items() if limit_s > CALL_S} == {"Stats", "Why"}
    assert max(limits_s.values()) <= LOOK_S


class Waiting(ScriptedSwitch):
    """No join is answered. ``left``: whoever asked waits no more."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.left = threading.Event(), threading.Event()

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        assert context.add_callback(self.left.set)
        self.noted("Join", request, context)
        self.came.set()
        self.over.wait()
        return pb.JoinResponse()


def test_a_rank_that_is_to_stop_waits_for_the_others_no_more_nor_they_for_it() -> None:
    switch = Waiting()
    with member(switch, stop=lambda: "enough" if switch.came.is_set() else None, workers=2) as session:
        with pytest.raises(SessionError, match=r"^enough$") as caught:
            join(session)
        assert switch.left.wait(PATIENCE_S), "the switch was told"
    assert caught.value.code is grpc.StatusCode.CANCELLED


def said_to_who_joins_when_it_is_closed(switch: ScriptedSwitch) -> list[str]:
    """By another thread, while the switch has its call, or after it has refused it."""
    said = list[str]()

    def wait(session: Session) -> None:
        try:
            join(session)
        except SessionError as error:
            said.append(str(error))

    with member(switch, workers=2, reconnect_s=math.inf) as session:
        thread = threading.Thread(target=wait, args=(session,))
        thread.start()
        wait_for(lambda: len(switch.requests["Join"]) > 0)
        session.close()
        thread.join(PATIENCE_S)
    return said


def test_a_rank_that_is_closed_waits_for_the_others_no_more() -> None:
    assert said_to_who_joins_when_it_is_closed(Waiting()) == [CLOSED_JOINING]


def test_a_rank_that_is_closed_looks_for_the_switch_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_S", 1e6)
    switch = ScriptedSwitch()
    switch.refusals["Join"] = [grpc.StatusCode.UNAVAILABLE]
    assert said_to_who_joins_when_it_is_closed(switch) == [CLOSED_JOINING]


class Leaving(ScriptedSwitch):
    """Says where data goes, to who asks a second time, while a rank leaves, which takes until ``done`` says so."""

    def __init__(self, done: Callable[[], bool]) -> None:
        super().__init__()
        self._done = done
        self.asked, self.leaves = threading.Event(), threading.Event()

    def DataPlanes(self, request: pb.DataPlanesRequest, context: grpc.ServicerContext) -> pb.DataPlanesResponse:  # noqa: N802
        if self.requests["Join"]:
            self.asked.set()
            self.leaves.wait(PATIENCE_S)
        return super().DataPlanes(request, context)

    def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveResponse:  # noqa: N802
        self.leaves.set()
        wait_for(lambda: self._done() or len(self.requests["Join"]) > 1)
        return super().Leave(request, context)


def test_a_rank_that_is_closed_as_it_is_about_to_join_again_does_not_join_when_it_has_left() -> None:
    """The switch would wait for it, and the others would hear that it has fallen silent."""

    def again(session: Session) -> None:
        with pytest.raises(SessionError, match=f"^{re.escape(CLOSED_JOINING)}$"):
            session.join(lambda: (session.local_host(), 5))

    switch = Leaving(lambda: not thread.is_alive())
    with member(switch) as session:
        thread = threading.Thread(target=again, args=(session,))
        join(session)
        thread.start()
        assert switch.asked.wait(PATIENCE_S)
        session.close()
        thread.join(PATIENCE_S)
    assert len(switch.requests["Join"]) == 1


def test_a_closed_session_makes_no_calls() -> None:
    switch = ScriptedSwitch()
    with member(switch) as session:
        session.close()
        assert session.calls.why() == ""
        assert session.counted() is None
        for call in (session.local_host, lambda: join(session)):
            with pytest.raises(SessionError, match=f"^{re.escape(CLOSED_JOINING)}$"):
                call()
    assert not switch.requests


# --- which are made again ---


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED]
)
def test_a_switch_that_does_not_say_where_data_goes_is_asked_again(code: grpc.StatusCode) -> None:
    switch = ScriptedSwitch()
    switch.refusals["DataPlanes"] = [code, code]
    with member(switch) as session:
        assert session.local_host() == "127.0.0.1"
    assert len(switch.requests["DataPlanes"]) == 3


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_switch_that_stops_while_a_rank_joins_is_asked_again_with_where_it_is_then(code: grpc.StatusCode) -> None:
    switch, addresses = ScriptedSwitch(), [("127.0.0.1", 5), ("127.0.0.2", 6)]
    switch.refusals["Join"] = [code]
    left = list[Address](addresses)
    with member(switch) as session:
        session.join(lambda: left.pop(0))
    asked = [[(a.host, a.port) for a in request.addresses] for request in switch.requests["Join"]]
    assert asked == [[address] for address in addresses]


@pytest.mark.parametrize("call", ["DataPlanes", "Join"])
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION])
def test_a_refusal_is_an_error_at_once(call: str, code: grpc.StatusCode) -> None:
    switch = ScriptedSwitch()
    switch.refusals[call] = [code]
    with member(switch) as session:
        with pytest.raises(SessionError, match=r"the switch at .* says: not now$") as caught:
            session.join(lambda: (session.local_host(), 5))
        assert caught.value.code is code
        assert len(switch.requests[call]) == 1


def test_others_who_do_not_come_in_time_are_an_error_at_once() -> None:
    switch = ScriptedSwitch()
    switch.refusals["Join"] = [grpc.StatusCode.DEADLINE_EXCEEDED]
    with member(switch) as session, pytest.raises(SessionError, match="not now"):
        join(session)


def test_each_join_looks_for_the_switch_anew() -> None:
    """Else a rank that has run for long would give up at the first attempt."""
    switch = ScriptedSwitch()
    with member(switch) as session:
        join(session)
        session.calls._began_s -= 1e6
        switch.refusals["Join"] = [grpc.StatusCode.UNAVAILABLE]
        assert join(session).number == 1


# --- what the switch counts, and why it waits ---


@pytest.mark.parametrize(
    ("code", "said"), [(grpc.StatusCode.RESOURCE_EXHAUSTED, None), (grpc.StatusCode.PERMISSION_DENIED, "says: not now")]
)
def test_who_asks_too_often_what_was_counted_hears_nothing_and_else_why_not(
    code: grpc.StatusCode, said: str | None
) -> None:
    switch = ScriptedSwitch()
    switch.refusals["Stats"] = [code]
    with member(switch) as session:
        counted = session.counted()
    assert counted is None if said is None else str(counted).endswith(said)


def test_data_planes_that_do_not_answer_are_told_in_place_of_counts() -> None:
    class Silent(ScriptedSwitch):
        def Stats(self, request: pb.StatsRequest, context: grpc.ServicerContext) -> pb.StatsResponse:  # noqa: N802
            return pb.StatsResponse(silent=["shard 1 does not answer", "nor does 2"])

    with member(Silent()) as session:
        counted = session.counted()
        assert counted == f"the switch at {session.calls.address} says: shard 1 does not answer; nor does 2"


def test_why_the_switch_cannot_say_why_is_told() -> None:
    switch = ScriptedSwitch()
    with member(switch) as session:
        assert session.calls.why() == "It waits."
        switch.refusals["Why"] = [grpc.StatusCode.NOT_FOUND]
        assert session.calls.why() == f"the switch at {session.calls.address} says: not now"
