"""Callers who do not know the secret: they are told, and counted, and who floods the switch with such calls does not
fill its log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs
from tests.switch.service.serving import Serving, job_spec, join_request

from inagg_switch.control.policy import Policy
from inagg_switch.service import refused_callers
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_switch.service.refused_callers import HOSTS_MAX, NO_SECRET, WRONG_SECRET, RefusedCallers
from inagg_switch.service.security import Security

SECRET = "s3cret"


def refused_lines(logs: list[Any]) -> list[tuple[int, str, str]]:
    return [(line["calls"], line["peer"], line["why"]) for line in logs if line["event"] == "callers_refused"]


def call_with(serving: Serving, secret: str | None) -> None:
    """A call that is refused."""
    with ControlClient(serving.server.address, Access(secret=secret)) as client, pytest.raises(ControlCallError):
        client.list()


def seen(serving: Serving, call: str) -> float:
    """How many calls were refused, by the metrics."""
    controller = serving.server.controller
    assert controller is not None
    labels = {"call": call, "code": "UNAUTHENTICATED"}
    samples = [sample for family in controller.call_seconds.collect() for sample in family.samples]
    return sum(s.value for s in samples if s.name.endswith("_count") and s.labels == labels)


@pytest.fixture
def guarded(serve: Callable[..., Serving]) -> Serving:
    return serve(security=Security(secret=SECRET), access=Access(secret=SECRET))


@pytest.mark.parametrize(("secret", "why"), [(None, NO_SECRET), ("guess-1", WRONG_SECRET)])
def test_a_refused_call_is_told_with_who_and_why_and_nothing_that_it_brought(
    guarded: Serving, secret: str | None, why: str
) -> None:
    with capture_logs() as logs:
        call_with(guarded, secret)
        guarded.client.list()
    assert refused_lines(logs) == [(1, "127.0.0.1", why)]
    assert "guess-1" not in str(logs)


def test_refused_calls_are_counted_with_their_code(guarded: Serving) -> None:
    for _ in range(3):
        call_with(guarded, "guess")
    assert seen(guarded, "List") == 3


def test_a_call_that_there_is_not_adds_no_name_to_the_metrics(guarded: Serving) -> None:
    with grpc.insecure_channel(guarded.server.address) as channel:
        for name in ("/made/up1", "/made/up2"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(name, bytes, bytes)(b"", timeout=5)
    assert seen(guarded, "other") == 2


def test_what_is_not_told_yet_is_when_the_switch_stops(guarded: Serving) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            call_with(guarded, "guess")
        guarded.stop()
    assert [calls for calls, _, _ in refused_lines(logs)] == [1, 2]


def on_loop(work: Callable[[RefusedCallers], Awaitable[None]]) -> list[tuple[int, str, str]]:
    """The lines of the log of what is done there."""

    async def main() -> None:
        await work(RefusedCallers())

    with capture_logs() as logs:
        asyncio.run(main())
    return refused_lines(logs)


def test_the_first_is_told_at_once_and_the_others_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_callers, "TELL_S", 0.2)

    async def work(refused: RefusedCallers) -> None:
        for number in range(100):
            refused.add("/x/y", f"10.0.0.{number}", WRONG_SECRET, 0.0)
        await asyncio.sleep(0.3)
        refused.add("/x/y", "10.0.1.1", NO_SECRET, 0.0)
        await asyncio.sleep(0.8)  # nothing comes, so nothing is told
        refused.add("/x/y", "10.0.1.2", NO_SECRET, 0.0)

    lines = on_loop(work)
    assert lines == [
        (1, "10.0.0.0", WRONG_SECRET), (99, "10.0.0.99", WRONG_SECRET), (1, "10.0.1.1", NO_SECRET),
        (1, "10.0.1.2", NO_SECRET),
    ]  # fmt: skip


def test_so_many_hosts_are_remembered_and_no_more() -> None:
    async def work(refused: RefusedCallers) -> None:
        for number in range(HOSTS_MAX + 1):
            refused.add("/x/y", str(number), WRONG_SECRET, 0.0)
        assert refused.since("0", 0.0) is None
        assert refused.since("1", 0.0) == WRONG_SECRET
        assert len(refused._last) == HOSTS_MAX
        assert refused.since("1", time.monotonic()) is None, "it was before that"

    on_loop(work)


def failed_text(serve: Callable[..., Serving], file: Path, after: str) -> str:
    """What is said of a rank that falls silent, with the secrets in ``file`` changed before that, and a call refused if
    its own is not there any more."""
    file.write_text("alice: a-secret\n")
    policy = Policy(heartbeat_limit_s=0.3, tick_interval_s=0.05, poll_interval_s=0.05)
    serving = serve(security=Security(secret_file=file), policy=policy, access=Access(secret="a-secret"))
    with capture_logs() as logs:
        serving.client.join(join_request(0, job_spec(workers=1)))
        file.write_text(after)
        serving.server.reload()
        if "a-secret" not in after:
            call_with(serving, "a-secret")
        serving.until(lambda: any(line["event"] == "member_failed" for line in logs))
    (text,) = [line["text"] for line in logs if line["event"] == "member_failed"]
    assert isinstance(text, str)
    return text


def test_of_a_rank_that_was_refused_it_is_said_when_it_has_fallen_silent(
    serve: Callable[..., Serving], tmp_path: Path
) -> None:
    text = failed_text(serve, tmp_path / "secrets", "alice: b-secret\n")
    assert text.endswith("; calls from its address, 127.0.0.1, were refused meanwhile: the shared secret is wrong")


def test_of_another_rank_that_is_not_said(serve: Callable[..., Serving], tmp_path: Path) -> None:
    assert "refused" not in failed_text(serve, tmp_path / "secrets", "alice: a-secret\n")
