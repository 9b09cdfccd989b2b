"""What a parent orders its switch to do comes to its data planes, and is answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import structlog
from tests.switch.aggregation.world import make_binding
from tests.switch.background import LoopThread
from tests.switch.control.world import RecordingDriver
from tests.switch.service.scripted_parent import below, until

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.binding import Place, Uplink
from inagg_switch.driver import JobCounters, Shard, SlotWait
from inagg_switch.service import uplink_agent
from inagg_switch.service.access import Access
from inagg_switch.service.tree_messages import binding_message, look_from
from inagg_switch.service.uplink_agent import UplinkAgent
from inagg_wire.noise_keys import BlockKey

PARENT = ("127.0.0.1", 5000)
PLACE = Place(1, uplink=Uplink(PARENT, 0, 1, BlockKey(1, 2)), child_of=(0,))
BINDING = replace(make_binding(7, "nat8", 1), place=PLACE)
BIND = pb.AttachOrder(number=5, bind=pb.BindOrder(shards=[binding_message(BINDING)]))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch tries again at once."""
    monkeypatch.setattr(uplink_agent, "RETRY_S", 0.01)


class AnywhereDriver(RecordingDriver):
    """Whose data plane takes what comes to any address."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        return (Shard(("0.0.0.0", 5000), 1024, None, True),)


def test_a_job_is_taken_up_and_dropped_as_ordered(loop_thread: LoopThread) -> None:
    driver = RecordingDriver()

    async def order() -> None:
        async with below(driver) as (parent, _, _):
            assert await parent.order(BIND) == pb.Answer(number=5)
            assert driver.bound == {(0, 7): BINDING}
            assert await parent.order(pb.AttachOrder(number=6, unbind=pb.UnbindOrder(job=7))) == pb.Answer(number=6)
            assert driver.bound == {}
            await parent.end_stream()
            await until(lambda: len(parent.hellos) == 2)

    loop_thread.run(order(), 20)
    assert driver.calls.count("unbind 0 7") == 1, "not again when the stream begins anew"


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_stream_has_ordered_is_dropped_before_the_next_begins(loop_thread: LoopThread, fails: bool) -> None:
    """Where an order failed as well: some of the shards may have carried it out."""
    driver = RecordingDriver(bind_error="no room" if fails else "")

    async def order() -> None:
        async with below(driver) as (parent, _, _):
            assert (await parent.order(BIND)).error == driver.bind_error
            await parent.end_stream()
            await until(lambda: len(parent.hellos) == 2)
            assert driver.calls == ["bind 0 7", "unbind 0 7"]
            assert driver.bound == {}

    loop_thread.run(order(), 20)


def test_a_look_has_what_is_asked_for_and_no_more(loop_thread: LoopThread) -> None:
    driver = RecordingDriver()
    waits = [SlotWait(slot, 1, (0,), 9.0 - slot) for slot in range(4)]
    for job in (7, 8, 9):
        driver.job_counters[job] = JobCounters([50], [0], [0], [0], [900], 50)
        driver.waits[job] = waits

    async def look() -> pb.Answer:
        async with below(driver) as (parent, _, _):
            return await parent.order(pb.AttachOrder(number=1, look=pb.LookOrder(jobs=[7, 9], limit=3)))

    (shard,) = loop_thread.run(look(), 20).shards
    counters, told = look_from(shard)
    assert counters.datagrams_in == 7
    assert set(counters.jobs) == {7, 8, 9}
    assert {job: wait for job, wait in told.items() if wait[0]} == {7: (4, waits[:3]), 9: (4, waits[:3])}


def test_a_look_at_a_switch_that_does_not_tell_its_slots_has_its_counters(loop_thread: LoopThread) -> None:
    driver = RecordingDriver(tells_slots=False, job_counters={7: JobCounters([50], [0], [0], [0], [900], 50)})

    async def look() -> pb.Answer:
        async with below(driver) as (parent, _, _):
            return await parent.order(pb.AttachOrder(number=1, look=pb.LookOrder(jobs=[7], limit=3)))

    answer = loop_thread.run(look(), 20)
    assert answer.error == ""
    assert look_from(answer.shards[0])[0].jobs[7].results == 50


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (pb.AttachOrder(number=3), "an order that this version does not know"),
        (
            pb.AttachOrder(number=3, bind=pb.BindOrder(shards=[binding_message(BINDING)] * 2)),
            "2 bindings for 1 shards below 1",
        ),
        (
            pb.AttachOrder(
                number=3, bind=pb.BindOrder(shards=[pb.Binding(job=7, format="nat8", lanes=32, base=1, slots=8)])
            ),
            "a lease of 8 slots at 1",
        ),
    ],
    ids=["unknown", "too many", "no lease"],
)
def test_an_order_that_cannot_be_carried_out_is_answered_with_why(
    loop_thread: LoopThread, order: pb.AttachOrder, error: str
) -> None:
    driver = RecordingDriver()

    async def give() -> None:
        async with below(driver) as (parent, agent, _):
            answer = await parent.order(order)
            assert answer.number == 3
            assert error in answer.error
            assert len(parent.hellos) == 1, "the stream stands"
            assert agent.attached.is_set()

    loop_thread.run(give(), 20)
    assert driver.calls == []


def test_an_order_that_fails_since_a_shard_has_died_is_not_answered(loop_thread: LoopThread) -> None:
    """The job is to have a new epoch when the shard is back, and would end by an error."""
    driver = RecordingDriver(bind_error="shard 0 has died", dead="shard 0 has died")

    async def give() -> None:
        async with below(driver) as (parent, agent, _):
            await parent.orders.put(BIND)
            assert (await parent.order(pb.AttachOrder(number=6, look=pb.LookOrder()))).number == 6
            driver.bind_error = ""
            await agent.restart(0)
            await until(lambda: len(parent.hellos) == 2)
            assert await parent.order(BIND) == pb.Answer(number=5)

    loop_thread.run(give(), 20)
    assert driver.calls == ["bind 0 7", "restart 0", "unbind 0 7", "bind 0 7"]


def test_of_looks_that_fail_the_first_is_in_the_log_and_of_other_orders_each(loop_thread: LoopThread) -> None:
    driver = RecordingDriver(look_error="it is stuck", bind_error="no room" * 1000)

    async def give() -> list[str]:
        look, unbind = pb.AttachOrder(look=pb.LookOrder()), pb.AttachOrder(unbind=pb.UnbindOrder(job=7))
        errors = []
        async with below(driver) as (parent, _, _):
            for order in (look, look, BIND, BIND, unbind, look):
                errors.append((await parent.order(order)).error)
        return errors

    with structlog.testing.capture_logs() as log:
        errors = loop_thread.run(give(), 20)
    assert [entry["order"] for entry in log if entry["event"] == "order_failed"] == ["look", "bind", "bind"]
    assert errors == ["it is stuck"] * 2 + [("no room" * 1000)[:1000]] * 2 + ["", "it is stuck"], "of a bearable length"


def test_a_switch_is_looked_at_as_long_as_it_serves_whether_it_answers_or_not(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink_agent, "LOOK_S", 0.01)
    driver = RecordingDriver(look_error="it has gone")

    async def look() -> None:
        agent = UplinkAgent(driver, "rack1", "127.0.0.1:1", Access())
        looking = asyncio.create_task(agent.look_now_and_then())
        await until(lambda: looking.done() or driver.looks > 2)
        assert not looking.done()
        looking.cancel()
        await asyncio.wait((looking,))
        await agent.close()

    loop_thread.run(look(), 20)


# --- who a switch says that it is ---


def test_a_switch_that_takes_data_at_any_address_says_from_where_it_sends_to_its_parent(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[tuple[str, int]] = []

    def way(host: str, port: int) -> tuple[str, str]:
        ways.append((host, port))
        return "127.0.0.9", host

    async def attach() -> tuple[pb.DataPlanesRequest, pb.AttachedSwitch]:
        async with below(AnywhereDriver()) as (parent, agent, _):
            parent.planes = [pb.Address(port=5005)]  # at the address by which it was reached
            await until(agent.attached.is_set)
            return parent.questions[0], parent.hellos[0]

    monkeypatch.setattr(uplink_agent, "ends_of_way", way)
    question, hello = loop_thread.run(attach(), 20)
    assert (question.host, question.own) == ("127.0.0.1", "")
    assert ways == [("127.0.0.1", 5005)]
    assert hello.shards[0].address == pb.Address(host="127.0.0.9", port=5000)


def test_a_switch_that_takes_data_at_one_address_says_that(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink_agent, "ends_of_way", lambda *_: pytest.fail("it looks for a way"))

    async def attach() -> tuple[pb.DataPlanesRequest, pb.AttachedSwitch]:
        async with below(RecordingDriver()) as (parent, agent, _):
            await until(agent.attached.is_set)
            return parent.questions[0], parent.hellos[0]

    question, hello = loop_thread.run(attach(), 20)
    assert (question.host, question.own) == ("127.0.0.1", "127.0.0.1")
    assert hello.shards[0].address == pb.Address(host="127.0.0.1", port=5000)
