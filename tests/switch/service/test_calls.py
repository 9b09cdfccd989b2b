"""How calls begin and end, those of one reply and streams alike."""

from __future__ import annotations

import time

import grpc
import pytest
import structlog
from tests.switch.service.serving import Serving, job_spec
from tests.switch.service.test_security import calls

from inagg_switch.driver import DriverError
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.controller import Controller

EVERY = pytest.mark.parametrize("name", ["Leave", "Watch", "Attach"])
STREAMS = pytest.mark.parametrize("name", ["Watch", "Attach"])


def controller_of(switch: Serving) -> Controller:
    assert switch.server.controller is not None
    return switch.server.controller


def break_with(error: Exception, switch: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what serves these calls fail."""
    controller = controller_of(switch)

    def fail(*_: object, **__: object) -> None:
        raise error

    for place, name in ((controller, "attach"), (controller, "leave"), (controller.subscribers, "add")):
        monkeypatch.setattr(place, name, fail)


def times(switch: Serving, call: str) -> dict[str, tuple[float, float]]:
    """Code -> how many calls ended with it, and how long they took together."""
    found: dict[str, dict[str, float]] = {}
    for sample in next(iter(controller_of(switch).call_seconds.collect())).samples:
        if sample.labels["call"] == call:
            found.setdefault(sample.labels["code"], {})[sample.name.rpartition("_")[2]] = sample.value
    return {code: (values["count"], values["sum"]) for code, values in found.items()}


@EVERY
def test_a_mistake_of_ours_is_logged_and_told_in_a_sentence(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    switch.client.create(job_spec())
    break_with(KeyError("inside"), switch, monkeypatch)
    with structlog.testing.capture_logs() as logs, pytest.raises(ControlCallError, match="a mistake in the") as caught:
        calls(switch.client)[name]()
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert "inside" not in caught.value.text
    assert [(line["event"], line["call"]) for line in logs if line["log_level"] == "error"] == [("call_failed", name)]
    switch.until(lambda: [count for count, _ in times(switch, name).values()] == [1])  # after the answer
    assert "INTERNAL" in times(switch, name)


@EVERY
def test_what_the_switch_itself_cannot_do_is_told(switch: Serving, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    switch.client.create(job_spec())
    break_with(DriverError("shard 0 hangs"), switch, monkeypatch)
    with structlog.testing.capture_logs() as logs, pytest.raises(ControlCallError, match="shard 0 hangs") as caught:
        calls(switch.client)[name]()
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert [(line["event"], line["call"]) for line in logs if line["log_level"] == "error"] == [("driver_failed", name)]


def test_a_watch_took_as_long_as_it_took_to_open(switch: Serving) -> None:
    switch.client.create(job_spec())
    stream = switch.client.watch("job")
    next(stream)
    time.sleep(0.5)
    switch.client.evict("job")
    assert [event.WhichOneof("event") for event in stream] == ["job_ended"]
    switch.until(lambda: times(switch, "Watch"))
    count, together_s = times(switch, "Watch")["OK"]
    assert count == 1
    assert together_s < 0.4


@STREAMS
def test_a_refused_stream_is_counted_with_its_status(switch: Serving, name: str) -> None:
    with pytest.raises(ControlCallError):
        calls(switch.client)[name]()  # no such job; no shards
    switch.until(lambda: [count for count, _ in times(switch, name).values()] == [1])
    assert "OK" not in times(switch, name)
