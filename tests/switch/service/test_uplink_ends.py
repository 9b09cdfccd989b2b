"""Streams of a switch to its parent that do not come about, or end: when it tries again, and what it says of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
import structlog
from tests.switch.background import LoopThread
from tests.switch.control.world import RecordingDriver
from tests.switch.service.scripted_parent import PATIENCE_S, ScriptedParent, below, until

from inagg_link.addresses import resolved
from inagg_proto import PROTOCOL
from inagg_switch.service import uplink_agent
from inagg_switch.service.access import Access
from inagg_switch.service.uplink_agent import UplinkAgent, UplinkError

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch tries again at once."""
    monkeypatch.setattr(uplink_agent, "RETRY_S", 0.01)


class HeldDriver(RecordingDriver):
    """Whose shard starts again when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may = threading.Event(), threading.Event()

    def restart(self, shard: int) -> None:
        self.begun.set()
        self.may.wait(PATIENCE_S)


def lost(log: list[Any]) -> list[str]:
    """The reasons for which the parent was said to be lost."""
    return [entry["why"] for entry in log if entry["event"] == "parent_lost"]


# --- a parent that has had the switch ---


def test_each_stream_that_stood_and_has_ended_is_in_the_log(loop_thread: LoopThread) -> None:
    async def end_two() -> None:
        async with below(RecordingDriver()) as (parent, agent, _):
            for _ in range(2):
                await until(agent.attached.is_set)
                await parent.end_stream()
                await until(lambda: not agent.attached.is_set())
            await until(agent.attached.is_set)

    with structlog.testing.capture_logs() as log:
        loop_thread.run(end_two(), 20)
    assert lost(log) == ["the parent has ended the stream"] * 2


def test_a_switch_that_was_attached_waits_for_a_parent_that_was_taken_for_an_older_one(loop_thread: LoopThread) -> None:
    """A root that is started again with the version before by mistake ends no job that could go on."""

    async def replace_it() -> None:
        async with below(RecordingDriver()) as (parent, agent, running):
            await until(agent.attached.is_set)
            parent.protocol = 0
            await parent.end_stream()
            await until(lambda: running.done() or agent.trouble is not None)
            assert not running.done()
            assert str(agent.trouble).startswith(f"the switch at {agent.parent} has an older inagg")
            assert not agent.attached.is_set()
            parent.protocol = PROTOCOL
            await until(agent.attached.is_set)
            assert agent.trouble is None

    loop_thread.run(replace_it(), 20)


def test_a_stream_that_is_cancelled_on_its_way_ends_no_switch(loop_thread: LoopThread) -> None:
    """GRPC says so as a cancellation, of the task, as it seems."""

    async def cancel() -> None:
        async with below(RecordingDriver()) as (parent, agent, running):
            await until(agent.attached.is_set)
            assert agent._call is not None
            agent._call.cancel()
            await until(lambda: running.done() or len(parent.hellos) == 2)
            assert not running.done()

    with structlog.testing.capture_logs() as log:
        loop_thread.run(cancel(), 20)
    assert lost(log) == ["the stream was cancelled on its way"]


def test_where_data_planes_do_not_drop_their_jobs_the_stream_begins_when_they_do(loop_thread: LoopThread) -> None:
    async def fail() -> None:
        driver = RecordingDriver()
        async with below(driver) as (parent, agent, running):
            await until(agent.attached.is_set)
            agent._jobs.add(7)
            driver.unbind_error = "it is stuck"
            await parent.end_stream()
            await until(lambda: running.done() or agent.trouble is not None)
            assert not running.done()
            assert agent.trouble == "it is stuck"
            driver.unbind_error = ""
            await until(lambda: len(parent.hellos) == 2)

    loop_thread.run(fail(), 20)


# --- a parent that is not there, or does not answer ---


def test_a_parent_that_is_away_is_told_of_once_and_is_no_trouble_of_this_switch(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def found(host: str) -> str:
        attempts.append(host)
        return resolved(host)

    async def look() -> str | None:
        agent = UplinkAgent(RecordingDriver(), "rack1", NOBODY, Access())
        running = asyncio.create_task(agent.run())
        await until(lambda: len(attempts) > 3)
        running.cancel()
        await asyncio.wait((running,))
        await agent.close()
        return agent.trouble

    monkeypatch.setattr(uplink_agent, "resolved", found)
    with structlog.testing.capture_logs() as log:
        assert loop_thread.run(look(), 20) is None
    (why,) = lost(log)
    assert why.startswith("UNAVAILABLE: ")


def test_between_two_attempts_some_time_passes(loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink_agent, "RETRY_S", 1000.0)

    async def end_it() -> int:
        async with below(RecordingDriver()) as (parent, agent, _):
            await until(agent.attached.is_set)
            await parent.end_stream()
            await until(lambda: not agent.attached.is_set())
            await asyncio.sleep(0.1)
            return len(parent.questions)

    assert loop_thread.run(end_it(), 20) == 1


def test_a_name_of_the_parent_that_is_unknown_for_a_while_ends_no_switch(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def late(host: str) -> str:
        asked.append(host)
        if len(asked) == 1:
            raise OSError("Name or service not known")
        return resolved(host)

    async def attach() -> None:
        async with below(RecordingDriver()) as (_, agent, running):
            await until(lambda: running.done() or agent.attached.is_set())
            assert not running.done()

    monkeypatch.setattr(uplink_agent, "resolved", late)
    loop_thread.run(attach(), 20)
    assert len(asked) == 2


def test_a_parent_that_does_not_answer_in_time_is_said_to(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink_agent, "FIND_S", 0.1)

    async def hold() -> tuple[str | None, str]:
        async with below(RecordingDriver()) as (parent, agent, _):
            parent.held_s = PATIENCE_S
            await until(lambda: agent.trouble is not None)
            return agent.trouble, agent.parent

    trouble, parent = loop_thread.run(hold(), 20)
    assert trouble == f"its parent at {parent} does not answer in time"


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, ""),
        (grpc.StatusCode.PERMISSION_DENIED, " (INAGG_SECRET of this switch)"),
        (grpc.StatusCode.FAILED_PRECONDITION, ""),
    ],
)
def test_a_switch_that_is_refused_before_it_was_attached_ends_with_what_the_parent_says(
    loop_thread: LoopThread, code: grpc.StatusCode, hint: str
) -> None:
    async def attach() -> tuple[str, str]:
        async with below(RecordingDriver()) as (parent, agent, running):
            parent.refusal = code, "not you"
            await asyncio.wait((running,), timeout=PATIENCE_S)
            with pytest.raises(UplinkError) as caught:
                await running
            return str(caught.value), agent.parent

    said, parent = loop_thread.run(attach(), 20)
    assert said == f"{parent} refuses this switch: not you{hint}"


def test_a_switch_that_was_attached_says_how_it_is_refused_and_tries_again(loop_thread: LoopThread) -> None:
    async def attach() -> None:
        async with below(RecordingDriver()) as (parent, agent, _):
            await until(agent.attached.is_set)
            parent.refusal = grpc.StatusCode.UNAUTHENTICATED, "not you"
            await parent.end_stream()
            await until(lambda: agent.trouble is not None)
            assert agent.trouble == f"its parent at {agent.parent} says: not you"
            parent.refusal = None
            await until(agent.attached.is_set)
            assert agent.trouble is None

    loop_thread.run(attach(), 20)


# --- a shard that is started again ---


def test_while_a_shard_is_started_again_there_is_no_stream_and_its_end_is_no_loss(loop_thread: LoopThread) -> None:
    driver = HeldDriver()

    async def restart() -> None:
        async with below(driver) as (parent, agent, _):
            await until(agent.attached.is_set)
            restarting = asyncio.create_task(agent.restart(0))
            await until(driver.begun.is_set)
            await until(lambda: not agent.attached.is_set())
            await asyncio.sleep(0.1)
            assert len(parent.questions) == len(parent.hellos) == 1, "nor does it ask its parent all the time"
            driver.may.set()
            await restarting
            await until(lambda: len(parent.hellos) == 2)

    with structlog.testing.capture_logs() as log:
        loop_thread.run(restart(), 20)
    assert lost(log) == []


def test_a_shard_that_dies_before_the_stream_has_begun_is_started_again_first(loop_thread: LoopThread) -> None:
    driver = HeldDriver()

    async def die(parent: ScriptedParent, agent: UplinkAgent) -> None:
        parent.held_s = 0.2
        await until(lambda: parent.questions)
        restarting = asyncio.create_task(agent.restart(0))
        await asyncio.sleep(0.4)
        assert parent.hellos == []
        driver.may.set()
        await restarting
        await until(lambda: parent.hellos)

    async def attach() -> None:
        async with below(driver) as (parent, agent, _):
            await die(parent, agent)

    loop_thread.run(attach(), 20)


def test_of_two_shards_that_have_died_both_are_started_again_first(loop_thread: LoopThread) -> None:
    class Driver(RecordingDriver):
        """Whose second shard starts again when it may."""

        def __init__(self) -> None:
            super().__init__(shard_count=2)
            self.may = threading.Event()

        def restart(self, shard: int) -> None:
            assert shard == 0 or self.may.wait(PATIENCE_S)
            super().restart(shard)

    driver = Driver()

    async def restart() -> None:
        async with below(driver) as (parent, agent, _):
            await until(agent.attached.is_set)
            second = asyncio.create_task(agent.restart(1))
            await agent.restart(0)
            await until(lambda: not agent.attached.is_set())
            await asyncio.sleep(0.1)
            assert len(parent.hellos) == 1
            driver.may.set()
            await second
            await until(lambda: len(parent.hellos) == 2)

    loop_thread.run(restart(), 20)


# --- the end ---


def test_what_is_read_again_when_the_switch_has_ended_is_no_error() -> None:
    """SIGHUP may come then."""

    async def make() -> UplinkAgent:
        agent = UplinkAgent(RecordingDriver(), "rack1", NOBODY, Access())
        await agent.close()
        return agent

    thread = LoopThread()
    agent = thread.run(make(), 10)
    thread.close()
    agent.renew(agent.read())
