"""A switch that goes away while a command asks it again and again."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import grpc
import pytest
from rich.console import Console
from tests.switch.cli.messages import job, shard_stats, stats

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.cli import outage
from inagg_switch.cli import top as top_command
from inagg_switch.cli.outage import Outage
from inagg_switch.cli.top import show_top
from inagg_switch.cli.why import show_why
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient

AWAY = ControlCallError(grpc.StatusCode.UNAVAILABLE, "cannot reach it")
HANGS = ControlCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "it did not answer in time")
BROKEN = ControlCallError(grpc.StatusCode.INTERNAL, "its shard does not answer")
NO_JOB = ControlCallError(grpc.StatusCode.NOT_FOUND, "no job 'train'")
INTERVAL_S = 0.001


class Script:
    """A client that is given these answers, and then Ctrl-C."""

    address = "127.0.0.1:1"

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def _next(self, *_: object) -> Any:
        answer = next(self._answers, None)
        if answer is None:
            raise KeyboardInterrupt
        if isinstance(answer, Exception):
            raise answer
        return answer

    stats = why = _next


def look(at_s: float, datagrams_in: int) -> pb.StatsResponse:
    return stats(at_s, shards=[shard_stats(datagrams_in=datagrams_in)])


def top(*answers: Any, count: int = 0, as_json: bool = True) -> None:
    client = cast(ControlClient, Script(*answers))
    show_top(client, job="", as_json=as_json, once=False, interval_s=INTERVAL_S, count=count)


def why(*answers: Any, watch: bool = True) -> int:
    client = cast(ControlClient, Script(*answers))
    return show_why(client, "train", as_json=False, slots=16, over_s=1.0, watch=watch, interval_s=INTERVAL_S)


def test_top_says_once_that_the_switch_is_away_and_begins_anew_when_it_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    top(look(1, 100), look(2, 300), AWAY, AWAY, HANGS, look(60, 5), look(61, 8))
    said = capsys.readouterr()
    looks = [json.loads(line) for line in said.out.splitlines()]
    assert [(shown["interval_s"], shown["shards"][0]["rates"]["datagrams_in"]) for shown in looks] == [(1, 200), (1, 3)]
    assert said.err == "cannot reach it; asking again until that is over\n"


def test_a_line_of_json_tells_the_unix_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The switch's own clock begins anywhere: two switches' lines, or a job's log, are compared by the time."""
    before_s = time.time()
    top(look(1, 100), look(2, 300), count=1)
    shown = json.loads(capsys.readouterr().out)
    assert before_s - 1 < shown["time_s"] < time.time() + 1
    assert shown["at_s"] == 2


def test_each_time_that_the_switch_goes_away_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    top(look(1, 1), AWAY, look(2, 1), look(3, 1), HANGS, as_json=False)
    assert capsys.readouterr().err.count("asking again") == 2


def test_top_that_is_to_look_so_many_times_ends_when_the_switch_goes_away() -> None:
    with pytest.raises(ControlCallError, match="cannot reach it"):
        top(look(1, 1), look(2, 1), AWAY, look(3, 1), look(4, 1), count=2)


@pytest.mark.parametrize("show", [top, why])
def test_a_switch_that_is_not_there_at_the_start_is_an_error(show: Callable[..., object]) -> None:
    with pytest.raises(ControlCallError, match="cannot reach it"):
        show(AWAY, AWAY)


def test_why_that_watches_goes_on_when_the_switch_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    waits = pb.WhyResponse(job=job(), text=["It waits."])
    over = pb.WhyResponse(ended=pb.EndedJob(name="train", text="all ranks left"))
    assert why(waits, AWAY, AWAY, NO_JOB, waits, over) == 3
    said = capsys.readouterr()
    assert "Job train ended" in said.out
    assert said.err.splitlines() == [f"{error}; asking again until that is over" for error in (AWAY, NO_JOB)]


def test_commands_that_watch_go_on_when_data_planes_answer_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A shard that hangs is started again after half a minute."""
    top(look(1, 1), look(2, 1), BROKEN, BROKEN, look(60, 1), look(61, 1))
    over = pb.WhyResponse(ended=pb.EndedJob(name="train", text="all ranks left"))
    assert why(pb.WhyResponse(job=job(), text=["It waits."]), BROKEN, BROKEN, over) == 3
    said = capsys.readouterr()
    assert said.err.splitlines() == [f"{BROKEN}; asking again until that is over"] * 2
    assert "Job train ended" in said.out


def test_a_job_that_is_over_while_the_switch_is_there_ends_the_command() -> None:
    with pytest.raises(ControlCallError, match="no job"):
        top(look(1, 1), look(2, 1), NO_JOB, look(3, 1))


def test_a_job_that_does_not_come_back_to_a_switch_that_is_back_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "RETURN_S", -1.0)
    told = Outage()
    told.missed(AWAY)
    with pytest.raises(ControlCallError, match="no job"):
        told.missed(NO_JOB)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is one."""
    monkeypatch.setattr(top_command, "console", lambda: Console(file=io.StringIO(), force_terminal=True))


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED])
def test_on_a_terminal_too_an_error_that_stays_ends_top(code: grpc.StatusCode) -> None:
    error = ControlCallError(code, "no more of it")
    with pytest.raises(ControlCallError, match="no more of it"):
        top(look(1, 1), look(2, 1), error, look(3, 1), as_json=False)


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_a_switch_that_is_away_is_asked_again_and_nothing_is_printed_into_the_picture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Script(look(1, 1), AWAY, NO_JOB, look(2, 1), AWAY, look(3, 1))
    show_top(cast(ControlClient, client), job="", as_json=False, once=False, interval_s=INTERVAL_S, count=0)
    assert next(client._answers, None) is None
    assert capsys.readouterr().err == ""


class Recording(Access):
    """Keeps with which options a channel was opened."""

    options: ClassVar[list[tuple[str, int]]] = []

    def channel(self, address: str, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
        self.options.extend(options)
        return super().channel(address, options)


def test_a_switch_that_is_back_is_noticed_soon() -> None:
    """And not after the two minutes to which gRPC's waits grow."""
    with ControlClient("127.0.0.1:1", Recording()):
        assert dict(Recording.options)["grpc.max_reconnect_backoff_ms"] == 1000
