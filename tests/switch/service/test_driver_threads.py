"""Calls to the switch: a shard that does not answer holds up nobody else, and orders go before looks."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import capture_logs
from tests.switch.aggregation.world import make_binding
from tests.switch.control.world import RecordingDriver

from inagg_switch.binding import Binding
from inagg_switch.control.events import ROOT
from inagg_switch.driver import Counters, DriverError, SlotWait
from inagg_switch.service import driver_threads
from inagg_switch.service.driver_threads import DriverThreads, Waits, join_waits

BIND = (make_binding(7, n=2),) * 2


class HeldDriver(RecordingDriver):
    """Two shards; what is asked of the second waits until it is let go."""

    def __init__(self) -> None:
        super().__init__(shard_count=2)
        self.go_on = threading.Event()

    def bind(self, shard: int, binding: Binding) -> None:
        if shard == 1:
            self.go_on.wait(30)
        super().bind(shard, binding)

    def counters(self, shard: int) -> Counters:
        self.calls.append(f"counters {shard}")
        if shard == 1:
            self.go_on.wait(30)
        return super().counters(shard)


def test_a_shard_that_does_not_answer_holds_up_no_other() -> None:
    async def main() -> None:
        driver = HeldDriver()
        threads = DriverThreads(driver)
        binding = asyncio.create_task(threads.bind(BIND))
        while "bind 0 7" not in driver.calls:
            await asyncio.sleep(0.001)
        assert "bind 1 7" not in driver.calls
        driver.go_on.set()
        await binding
        assert "bind 1 7" in driver.calls
        await threads.close()

    asyncio.run(main())


def test_of_the_slots_of_all_shards_those_that_wait_longest_are_listed() -> None:
    first, second = ([SlotWait(slot, 1, (0,), waited_s) for slot, waited_s in enumerate(of)] for of in ((5, 1), (9, 2)))
    assert join_waits([(2, first), (7, second)], 3) == Waits(9, ((1, second[0]), (0, first[0]), (1, second[1])))
    assert join_waits([(2, first), None], 3) is None


def test_a_look_at_a_shard_that_does_not_answer_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_threads, "LOOK_S", 0.05)

    async def main() -> None:
        driver = HeldDriver()
        threads = DriverThreads(driver)
        with pytest.raises(DriverError, match="shard 1 has not answered"):
            await asyncio.wait_for(threads.look([], 0), 5)
        driver.go_on.set()
        assert len(await threads.look([], 0)) == 2
        await threads.close()

    asyncio.run(main())


def test_of_a_p4_switch_it_is_the_switch_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no shards of which anybody knows."""
    monkeypatch.setattr(driver_threads, "LOOK_S", 0.05)

    async def main() -> None:
        driver = HeldDriver()
        driver.name = "bmv2"
        threads = DriverThreads(driver)
        with pytest.raises(DriverError, match=r"^the bmv2 switch has not answered for 0 s$"):
            await asyncio.wait_for(threads.look([], 0), 5)
        driver.go_on.set()
        await threads.close()

    asyncio.run(main())


def test_a_snapshot_has_what_the_other_shards_say_and_which_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_threads, "LOOK_S", 0.05)
    monkeypatch.setattr(driver_threads, "AGAIN_S", 0.05)

    async def main() -> None:
        driver = HeldDriver()
        threads = DriverThreads(driver)
        first = await threads.snapshot([7])
        assert (first.silent, [shard.datagrams_in for shard in first.shards[ROOT]]) == (
            ("shard 1 has not answered for 0 s",),
            [7, 0],
        )
        assert first.waits[7].count == 0
        driver.go_on.set()
        assert (await threads.snapshot([])).silent == ()
        driver.go_on.clear()
        last = await threads.snapshot([])
        assert [shard.datagrams_in for shard in last.shards[ROOT]] == [7, 7], "those that it had"
        driver.go_on.set()
        await threads.close()

    asyncio.run(main())


def test_a_shard_that_answers_again_is_given_its_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile a look at it is short, and says since when it has not answered."""
    monkeypatch.setattr(driver_threads, "LOOK_S", 0.05)
    monkeypatch.setattr(driver_threads, "AGAIN_S", 0.0)

    async def main() -> None:
        driver = HeldDriver()
        threads = DriverThreads(driver)
        shard = threads._shards[1]
        with pytest.raises(DriverError, match="has not answered for 0 s"):
            await threads.look([], 0)
        assert shard._silent_since is not None
        shard._silent_since -= 100
        with pytest.raises(DriverError, match="has not answered for 100 s"):
            await threads.look([], 0)
        driver.go_on.set()
        await threads.unbind(7)
        monkeypatch.setattr(driver_threads, "LOOK_S", 30.0)
        assert len(await threads.look([], 0)) == 2
        await threads.close()

    asyncio.run(main())


def test_orders_go_before_looks_that_came_earlier() -> None:
    async def main() -> None:
        driver = HeldDriver()
        threads = DriverThreads(driver)
        looks = [asyncio.create_task(threads.snapshot([])) for _ in range(3)]
        while "counters 1" not in driver.calls:
            await asyncio.sleep(0.001)
        order = asyncio.create_task(threads.unbind(7))
        await asyncio.sleep(0.05)
        driver.go_on.set()
        await asyncio.gather(order, *looks)
        of_shard = [call for call in driver.calls if call in ("unbind 1 7", "counters 1")]
        assert of_shard == ["counters 1", "unbind 1 7", "counters 1", "counters 1"]
        await threads.close()

    asyncio.run(main())


def test_all_shards_have_answered_when_a_bind_has_failed() -> None:
    """Else the job's slots could be given away while a shard is still being told of them."""

    async def main() -> None:
        driver = HeldDriver()
        driver.bind_error, driver.go_on = "no room", threading.Event()
        threads = DriverThreads(driver)
        order = asyncio.create_task(threads.bind(BIND))
        while "bind 0 7" not in driver.calls:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert not order.done()
        driver.go_on.set()
        with pytest.raises(DriverError, match="no room; no room"):
            await order
        await threads.close()

    asyncio.run(main())


def test_a_bug_of_the_driver_ends_the_call_alone() -> None:
    async def main() -> None:
        driver = RecordingDriver()
        threads = DriverThreads(driver)
        driver.look_error = "x"
        with pytest.raises(DriverError):
            await threads.snapshot([])
        with capture_logs() as logs, pytest.raises(DriverError, match="unexpected IndexError"):
            await threads.bind(())
        assert [(line["event"], line["exc_info"]) for line in logs] == [("driver_call_failed", True)]
        driver.look_error = ""
        await threads.snapshot([])
        await threads.close()

    asyncio.run(main())
