"""Refusals of one caller get slower, and nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from inagg_switch.service import refusal_throttle
from inagg_switch.service.refusal_throttle import BURST, CALLERS_MAX, DELAY_MAX_S, RATE_PER_S, RefusalThrottle


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> RefusalThrottle:
    return RefusalThrottle(clock)


def flood(throttle: RefusalThrottle, caller: str = "mallory", refusals: int = 10 * BURST) -> list[float]:
    return [throttle.delay_s(caller) for _ in range(refusals)]


def test_the_first_ones_come_at_once_and_the_others_take_longer_and_longer_up_to_a_bound(
    throttle: RefusalThrottle,
) -> None:
    delays = flood(throttle)
    assert delays[:BURST] == pytest.approx([0.0] * BURST, abs=1e-9)
    assert delays[BURST : BURST + 2] == pytest.approx([1 / RATE_PER_S, 2 / RATE_PER_S])
    assert delays[-1] == max(delays) == DELAY_MAX_S


def test_another_caller_does_not_feel_it(throttle: RefusalThrottle) -> None:
    flood(throttle)
    assert throttle.delay_s("alice") == 0.0


def test_who_stops_is_as_good_as_new_after_some_seconds(throttle: RefusalThrottle, clock: Clock) -> None:
    flood(throttle)
    clock.now += DELAY_MAX_S + BURST / RATE_PER_S
    assert flood(throttle)[:BURST] == pytest.approx([0.0] * BURST, abs=1e-9)


def test_who_is_refused_at_the_rate_that_is_allowed_never_waits(throttle: RefusalThrottle, clock: Clock) -> None:
    for _ in range(3 * BURST):
        assert throttle.delay_s("slow") == 0.0
        clock.now += 1.001 / RATE_PER_S


def test_it_remembers_so_many_callers_and_no_more(throttle: RefusalThrottle) -> None:
    flood(throttle)
    for number in range(CALLERS_MAX):
        throttle.delay_s(f"caller{number}")
    assert len(throttle._due_s) == CALLERS_MAX
    assert throttle.delay_s("mallory") == 0.0, "forgotten"


def test_so_many_wait_and_the_others_are_refused_at_once(
    throttle: RefusalThrottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_throttle, "WAITING_MAX", 3)
    flood(throttle)

    async def there() -> tuple[int, int]:
        calls = [asyncio.create_task(throttle.wait("mallory")) for _ in range(10)]
        await asyncio.sleep(0)
        waiting = sum(not call.done() for call in calls)
        await asyncio.sleep(0)
        waiting = sum(not call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return waiting, throttle._waiting

    assert asyncio.run(there()) == (3, 0)
