"""Refusals of one caller get slower, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tests.switch.service.serving import Serving
from tests.switch.service.test_hostile_calls import raw

from inagg_switch.service import refusal_throttle
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_switch.service.refusal_throttle import BURST, CALLERS_MAX, DELAY_MAX_S, RATE_PER_S, RefusalThrottle
from inagg_switch.service.security import Security


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


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The callers of refused calls, in order."""
    callers: list[str] = []

    async def wait(_: RefusalThrottle, caller: str) -> float:
        callers.append(caller)
        return 0.0

    monkeypatch.setattr(RefusalThrottle, "wait", wait)
    return callers


def test_every_refusal_counts_for_the_host_of_a_caller_without_a_name(switch: Serving, refused: list[str]) -> None:
    switch.client.list()
    assert refused == []
    with pytest.raises(ControlCallError, match="no job"):
        switch.client.why("nobody")
    with grpc.insecure_channel(switch.server.address) as channel, pytest.raises(grpc.RpcError):
        next(raw(channel, "Watch")(b"\xff\xff\xff", timeout=5))
    assert refused == ["127.0.0.1"] * 2


def test_a_refusal_counts_for_the_principal_that_was_refused(
    serve: Callable[..., Serving], refused: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "secrets"
    file.write_text("alice: a-secret\nmallory: m-secret\n")
    switch = serve(security=Security(secret_file=file))
    for secret in ("m-secret", "wrong"):
        with ControlClient(switch.server.address, Access(secret=secret)) as client, pytest.raises(ControlCallError):
            client.why("nobody")
    assert refused == ["mallory", "127.0.0.1"]
