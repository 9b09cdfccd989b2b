"""What a switch tells a rank meanwhile: of how many blocks there is room, who has left, and that it answers no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.switch.background import BackgroundServer
from tests.switch.control.world import LIMITS, RecordingDriver

from inagg_host.allreduce import AllReduce
from inagg_host.config import Config
from inagg_host.membership.session import HEARTBEATS_MISSED, UNREACHABLE, Loss, Session
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.service.server import ControlServer
from inagg_wire.formats import job_format
from inagg_wire.layout import datagram_bytes

from .scripted import LANES, WINDOW, ScriptedSwitch, join, member

PATIENCE_S = 30.0


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


# --- room ---


def test_a_rank_has_out_what_its_heartbeats_say_as_other_jobs_come_and_go() -> None:
    room = 20 * datagram_bytes(job_format("nat8").up, LANES)
    driver = RecordingDriver(limits=replace(LIMITS, receive_bytes=room))
    with BackgroundServer(ControlServer(driver, "127.0.0.1:0")) as server:
        options: dict[str, Any] = {
            "switch": server.address, "rank": 0, "workers": 1, "lanes": LANES, "window": WINDOW,
            "heartbeat_limit_s": 4.0,
        }  # fmt: skip
        with AllReduce(job="first", **options) as first:
            network = first._network
            assert network is not None
            shards = network.engine.state.shards
            assert shards["credit"].tolist() == [20]
            with AllReduce(job="second", **options):
                wait_for(lambda: shards["credit"].tolist() == [10])
            wait_for(lambda: shards["credit"].tolist() == [20])


# --- a switch that does not answer, though what it told its ranks to watch stays open ---


class Deaf(ScriptedSwitch):
    """Answers heartbeats with ``codes``, one after the other (None: well), and then well."""

    def __init__(self, codes: Sequence[grpc.StatusCode | None]) -> None:
        super().__init__()
        self._codes = list(codes)
        self.heartbeats = 0

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.HeartbeatResponse:  # noqa: N802
        place, self.heartbeats = self.heartbeats, self.heartbeats + 1
        code = self._codes[place] if place < len(self._codes) else None
        if code is not None:
            context.abort(code, "not now")
        return super().Heartbeat(request, context)


@contextmanager
def joined(switch: Deaf) -> Iterator[list[tuple[int, Loss]]]:
    """A rank has joined by ``switch``. What it finds that it has lost, and after how many heartbeats."""
    losses: list[tuple[int, Loss]] = []
    with member(switch, lambda loss: losses.append((switch.heartbeats, loss))) as session:
        join(session)
        yield losses


@pytest.mark.parametrize("code", UNREACHABLE)
def test_a_switch_that_answers_no_heartbeat_counts_as_gone_after_some(code: grpc.StatusCode) -> None:
    with joined(Deaf([code] * 100)) as losses:
        wait_for(lambda: len(losses) > 0)
    after, loss = losses[0]
    assert after == HEARTBEATS_MISSED
    assert "not now" in loss.cause
    assert not loss.final, "it may be there again"


def test_a_switch_that_answers_now_and_then_does_not_count_as_gone() -> None:
    codes = [*[grpc.StatusCode.UNAVAILABLE] * (HEARTBEATS_MISSED - 1), None] * 5
    switch = Deaf(codes)
    with joined(switch) as losses:
        wait_for(lambda: switch.heartbeats > len(codes))
    assert losses == []


def test_a_switch_that_knows_the_rank_no_more_is_believed_at_once() -> None:
    with joined(Deaf([grpc.StatusCode.FAILED_PRECONDITION] * 100)) as losses:
        wait_for(lambda: len(losses) > 0)
    assert losses[0][0] == 1


@pytest.mark.parametrize("call", ["Heartbeat", "Watch"])
def test_a_rank_whose_job_was_ended_for_good_does_not_join_again(call: str) -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.refusals[call] = [grpc.StatusCode.ABORTED] * 100
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    assert losses[0].final
    assert losses[0].cause.endswith("says: not now")


def test_heartbeats_come_as_often_as_the_switch_says() -> None:
    switch, began_s = Deaf([]), time.monotonic()
    with joined(switch):
        wait_for(lambda: switch.heartbeats >= 20)
    assert time.monotonic() - began_s < 15, "a thousandth of a second, and not one"


# --- epochs ---


def ended(epoch: int) -> pb.Event:
    return pb.Event(epoch_ended=pb.EpochEnded(epoch=epoch, text=f"epoch {epoch} is over"))


def test_that_another_epoch_is_over_is_no_news() -> None:
    """What a rank watches tells it of all of them: of one before, when it has joined again, and of one that others have
    begun already."""
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.epoch, switch.events = 2, [ended(1), ended(3), ended(2)]
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    assert losses == [Loss("epoch 2 is over")]


class Slow(ScriptedSwitch):
    """Answers the first of one kind of ``call`` when a test says so, and then with ``code``, where that is not None."""

    def __init__(self, call: str, code: grpc.StatusCode | None) -> None:
        super().__init__()
        self._call, self._code = call, code
        self.came, self.answer = threading.Event(), threading.Event()

    def noted(self, call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == self._call and not self.came.is_set():
            self.came.set()
            self.answer.wait(PATIENCE_S)
            if self._code is not None:
                context.abort(self._code, "not any more")
        super().noted(call, request, context)


@pytest.mark.parametrize("code", [None, grpc.StatusCode.FAILED_PRECONDITION])
def test_the_answer_to_a_heartbeat_says_nothing_of_an_epoch_that_began_meanwhile(code: grpc.StatusCode | None) -> None:
    switch, losses = Slow("Heartbeat", code), list[Loss]()
    with member(switch, losses.append) as session:
        join(session)
        assert switch.came.wait(PATIENCE_S)
        switch.epoch = 2
        join(session)
        switch.answer.set()
        wait_for(lambda: len(switch.requests["Heartbeat"]) > 2)
    assert losses == []


@pytest.mark.parametrize(
    ("call", "code"), [("Heartbeat", grpc.StatusCode.FAILED_PRECONDITION), ("Watch", grpc.StatusCode.UNAVAILABLE)]
)
def test_what_a_switch_says_to_which_the_rank_talks_no_more_is_no_loss(call: str, code: grpc.StatusCode) -> None:
    """It has another one, of several, and goes on there."""
    switch, losses = Slow(call, code), list[Loss]()
    with member(switch, losses.append) as session:
        join(session)
        assert switch.came.wait(PATIENCE_S)
        session.calls.stub = control_pb2_grpc.ControlStub(session.calls._channel)
        switch.answer.set()
        wait_for(lambda: len(switch.requests[call]) > 0)
    assert losses == []


class Closed:
    """A stub whose channel was closed. ``met``: that was noticed, by who makes that ``call``."""

    def __init__(self, call: str) -> None:
        self._call, self.met = call, threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: Any, **__: Any) -> Any:
            if name == self._call:
                self.met.set()
            raise ValueError("Cannot invoke RPC on closed channel!")

        return fail


@pytest.mark.parametrize("call", ["Heartbeat", "Watch"])
def test_a_rank_beats_and_watches_on_when_it_meets_a_channel_that_was_closed(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_host.membership.session.RETRY_S", 0.001)
    switch, losses, closed = ScriptedSwitch(), list[Loss](), Closed(call)
    switch.refusals["Watch"] = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 100_000  # so that it asks again and again
    with member(switch, losses.append) as session:
        join(session)
        stub = session.calls.stub
        session.calls.stub = closed  # type: ignore[assignment]
        assert closed.met.wait(PATIENCE_S)
        session.calls.stub = stub
        made = len(switch.requests[call])
        wait_for(lambda: len(switch.requests[call]) > made + 1)
    assert losses == []


def test_a_rank_that_joins_again_beats_and_watches_once() -> None:
    with member(ScriptedSwitch()) as session:
        for _ in range(3):
            join(session)
        threads = [thread.name for thread in threading.enumerate() if thread in session._threads]
    assert sorted(threads) == ["inagg_beat", "inagg_listen"]


def test_a_rank_that_is_closed_as_it_begins_to_watch_ends_that() -> None:
    switch = ScriptedSwitch()

    class Closing:
        """The rank is closed, by another thread, when its call has been made."""

        def __init__(self, session: Session) -> None:
            self._session, self._stub = session, session.calls.stub
            self.closes = threading.Thread(target=session.close)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stub, name)

        def Watch(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802
            watch = self._stub.Watch(*arguments, **options)
            self.closes.start()
            wait_for(self._session._closed.is_set)
            return watch

    with member(switch) as session:
        stub = Closing(session)
        session.calls.stub = stub  # type: ignore[assignment]
        join(session)
        wait_for(session._closed.is_set)
        stub.closes.join(PATIENCE_S)
        assert not stub.closes.is_alive()


@pytest.mark.parametrize(("state", "epoch"), [(pb.JOB_STATE_RUNNING, 2), (pb.JOB_STATE_JOINING, 1)])
def test_a_heartbeat_tells_that_the_epoch_is_over(state: pb.JobState.ValueType, epoch: int) -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    with member(switch, losses.append) as session:
        join(session)
        switch.state, switch.epoch = state, epoch
        wait_for(lambda: len(losses) > 0)
    assert losses[0] == Loss("the epoch is over")


def test_that_the_epoch_ends_because_a_rank_leaves_is_no_loss_of_its_own() -> None:
    losses = list[Loss]()

    class Ending(ScriptedSwitch):
        def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveResponse:  # noqa: N802
            session._hear(ended(1))
            return super().Leave(request, context)

    switch = Ending()
    with member(switch, losses.append) as session:
        join(session)
    assert len(switch.requests["Leave"]) == 1
    assert losses == []


def test_who_hears_of_a_loss_can_close_the_session() -> None:
    switch, closed = ScriptedSwitch(), threading.Event()
    switch.events = [ended(1)]

    def close(_: Loss) -> None:
        session.close()
        closed.set()

    with member(switch, close) as session:
        join(session)
        assert closed.wait(PATIENCE_S)
    assert len(switch.requests["Leave"]) == 1


@pytest.mark.parametrize("measured_s", [None, 0.25])
def test_heartbeats_tell_the_round_trip_where_there_is_one(measured_s: float | None) -> None:
    switch = ScriptedSwitch()
    with member(switch, round_trip_s=lambda: measured_s) as session:
        join(session)
        wait_for(lambda: len(switch.requests["Heartbeat"]) > 0)
    request = switch.requests["Heartbeat"][0]
    assert (request.round_trip_s if request.HasField("round_trip_s") else None) == measured_s


def test_a_switch_that_names_no_room_changes_none() -> None:
    switch, rooms = ScriptedSwitch(), list[int]()
    with member(switch, credited=rooms.append) as session:
        join(session)
        wait_for(lambda: len(switch.requests["Heartbeat"]) > 2)
        assert rooms == []
        switch.credit = 7
        wait_for(lambda: len(rooms) > 0)
    assert rooms[0] == 7


# --- what it watches ---

FAILED, ENDED = pb.MemberFailed, pb.JobEnded


@pytest.mark.parametrize(
    ("event", "loss"),
    [
        (pb.Event(member_failed=FAILED(rank=1, text="rank 1 fell silent")), Loss("rank 1 fell silent")),
        (pb.Event(member_failed=FAILED(rank=1)), Loss("rank 1 was given up")),
        (ended(1), Loss("epoch 1 is over")),
        (pb.Event(job_ended=ENDED(text="an operator ended it")), Loss("an operator ended it", final=True)),
    ],
)
def test_what_ends_an_epoch_or_the_job_is_heard(event: pb.Event, loss: Loss) -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.events = [event]
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    assert losses == [loss]


LEFT = pb.Event(member_left=pb.MemberLeft(rank=1))


@pytest.mark.parametrize(
    "late",
    [
        [pb.Event(member_failed=FAILED(rank=1, text="rank 1 fell silent"))],
        [LEFT, pb.Event(stalled=pb.Stalled(ranks=[1]))],
        [pb.Event(job_ended=ENDED(text="ranks 0-1 did not come back"))],
    ],
    ids=lambda late: late[-1].WhichOneof("event"),
)
def test_what_a_rank_watches_that_comes_late_ends_no_epoch_that_began_meanwhile(late: list[pb.Event]) -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.epoch = 2
    state = pb.Event(state=pb.Job(epoch=1))
    switch.events = [state, *late, pb.Event(epoch_started=pb.EpochStarted(epoch=2)), ended(2)]
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    assert losses == [Loss("epoch 2 is over")]


@pytest.mark.parametrize("before", [0, 1, 2], ids=["has not run here", "runs", "has begun another"])
def test_the_end_of_the_job_is_heard_whatever_the_rank_is_told_of_epochs_before(before: int) -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.events = [pb.Event(state=pb.Job(epoch=before)), pb.Event(job_ended=ENDED(text="enough"))]
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    assert losses == [Loss("enough", final=True)]


def test_a_switch_that_ends_what_a_rank_watches_as_it_stops_is_gone() -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.refusals["Watch"] = [grpc.StatusCode.UNAVAILABLE]
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    assert "not now" in losses[0].cause
    assert not losses[0].final, "it may be there again"


def test_a_rank_that_may_not_watch_now_asks_again() -> None:
    switch, losses = ScriptedSwitch(), list[Loss]()
    switch.refusals["Watch"] = [grpc.StatusCode.RESOURCE_EXHAUSTED]
    with member(switch, losses.append) as session:
        join(session)
        wait_for(lambda: len(switch.requests["Watch"]) > 1)
    assert losses == []


def test_a_rank_that_may_not_watch_waits_before_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_host.membership.session.RETRY_S", PATIENCE_S)
    switch = ScriptedSwitch()
    switch.refusals["Watch"] = [grpc.StatusCode.RESOURCE_EXHAUSTED]
    with member(switch) as session:
        join(session)
        wait_for(lambda: len(switch.requests["Watch"]) > 0)
        made = len(switch.requests["Heartbeat"])
        wait_for(lambda: len(switch.requests["Heartbeat"]) > made + 30)
        assert len(switch.requests["Watch"]) == 1


# --- who has left ---


def test_a_rank_that_left_and_has_come_back_is_not_blamed_for_a_stall() -> None:
    losses: list[Loss] = []
    config = Config(switch="127.0.0.1:9", rank=0, workers=3)
    with closing(Session(config, losses.append, lambda _: None, lambda: None, lambda: None)) as session:
        for rank in (1, 2):
            session._hear(pb.Event(member_left=pb.MemberLeft(rank=rank)))
        session._hear(pb.Event(member_joined=pb.MemberJoined(rank=1)))
        session._hear(pb.Event(stalled=pb.Stalled(ranks=[1])))
        assert losses == []
        session._hear(pb.Event(stalled=pb.Stalled(ranks=[1, 2])))
    (loss,) = losses
    assert loss.cause.startswith("rank 2 has left the job")
    assert loss.final


def test_those_who_had_left_before_a_rank_began_to_watch_are_blamed_for_a_stall_and_nobody_else() -> None:
    """What it is told first takes the place of what it had heard: it may have watched another switch before."""
    switch, losses = ScriptedSwitch(), list[Loss]()
    members = [pb.Member(rank=rank, state=pb.MEMBER_STATE_ACTIVE) for rank in range(3)]
    members[2].state = pb.MEMBER_STATE_LEFT
    switch.events = [
        pb.Event(member_left=pb.MemberLeft(rank=1)),
        pb.Event(state=pb.Job(members=members)),
        pb.Event(stalled=pb.Stalled(ranks=[0, 1])),
        pb.Event(stalled=pb.Stalled(ranks=[0, 1, 2])),
    ]
    with member(switch, losses.append, workers=3) as session:
        join(session)
        wait_for(lambda: len(losses) > 0)
    (loss,) = losses
    assert loss.cause.startswith("rank 2 has left the job")
    assert loss.final
