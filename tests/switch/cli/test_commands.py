"""`inagg jobs`, `top` and `why` against a control service: what they print, and their exit status."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.switch.service.certificates import Authority
from tests.switch.service.serving import Serving, job_spec

from inagg_proto import DEFAULT_PORT
from inagg_switch.cli.sections import LOOPBACK
from inagg_switch.driver import JobCounters, SlotWait
from inagg_switch.service.access import Access
from inagg_switch.service.security import Security
from inagg_switch.service.server import DEFAULT_ADDRESS
from inagg_testbed.cli import COMMANDS, make_root, run


def inagg(serving: Serving | None, *arguments: str) -> int:
    """Run a command in this process; its exit status."""
    where = ["--switch", serving.server.address] if serving is not None else []
    return run(make_root(COMMANDS), [arguments[0], *where, *arguments[1:]])


@pytest.fixture
def switch(serve: Callable[..., Serving]) -> Serving:
    return serve()


def test_jobs_are_listed_as_json(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    switch.join_all(job_spec("train"))
    assert inagg(switch, "jobs", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(job["spec"]["name"], job["state"]) for job in listed["jobs"]] == [("train", "running")]
    assert listed["ended"] == []


def test_jobs_are_listed_for_people(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    switch.join_all(job_spec("train"))
    assert inagg(switch, "jobs") == 0
    assert "train  running        2  nat8" in capsys.readouterr().out


def test_top_measures_over_one_interval(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(switch, "top", "--once", "--json", "--interval", "0.1") == 0
    snapshot = json.loads(capsys.readouterr().out)
    assert snapshot["interval_s"] >= 0.1
    assert snapshot["shards"][0]["datagrams_in"] == 7
    assert snapshot["shards"][0]["rates"]["datagrams_in"] == 0


def test_top_of_a_job_that_is_not_there(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(switch, "top", "nope", "--once", "--interval", "0.1") == 2
    assert "no job 'nope'" in capsys.readouterr().err


def test_why_a_job_waits_for_ranks_to_join(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = switch.join_later(0, job_spec("train"))
    switch.waiting(0, name="train")
    assert inagg(switch, "why", "train") == 1
    assert "The job waits for rank 1 of 2 to join." in capsys.readouterr().out
    switch.join_later(1, job_spec("train")).result()
    waiting.result()
    assert inagg(switch, "why", "train") == 0


def test_why_a_job_waits_for_contributions(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    number = switch.join_all(job_spec("train"))[0].job
    switch.driver.waits[number] = [SlotWait(slot, 3, (1,), 7.0) for slot in range(5)]
    switch.driver.job_counters[number] = JobCounters([0, 0], [0, 0], [0, 0], [0, 0], [0, 0])
    assert inagg(switch, "why", "train", "--slots", "2") == 1
    said = capsys.readouterr().out
    assert "5 slots of the 5 that wait miss rank 1, the oldest for 7.0 s" in said
    assert "... and 3 slots that wait for less long (--slots N lists N)" in said
    assert inagg(switch, "why", "train", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["verdict"], answer["slots_waiting"]) == (1, "waits", 5)
    assert inagg(switch, "why", "train", "--over", "8") == 0


def test_why_of_a_job_that_is_over(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    switch.join_all(job_spec("train"))
    switch.leave(0, "train", end=True)
    assert inagg(switch, "why", "train", "--watch") == 3
    assert "rank 0 ended job 'train'" in capsys.readouterr().out


def test_why_of_a_job_that_never_was(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(switch, "why", "nope") == 2
    assert "no job 'nope'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("jobs",), ("top", "--once"), ("why", "train")])
def test_a_switch_that_is_not_there_is_said_in_one_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert inagg(None, *arguments, "--switch", "127.0.0.1:1") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "Error: cannot reach the switch at 127.0.0.1:1: is `inagg switch` running there, without TLS? "
        "(Failed to connect to remote host: Connection refused)\n"
    )


def test_the_switch_is_that_of_the_environment(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INAGG_SWITCH", switch.server.address)
    assert inagg(None, "jobs") == 0
    assert switch.server.address in capsys.readouterr().out


def test_without_a_word_it_is_the_one_on_this_machine() -> None:
    assert LOOPBACK == DEFAULT_ADDRESS == f"127.0.0.1:{DEFAULT_PORT}"


def test_tls_is_implied_by_its_options(
    serve: Callable[..., Serving], authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, ca = authority.issue("switch"), authority.pair.certificate
    serving = serve(Security(pair.certificate, pair.key, client_ca=ca), Access(tls=True, ca=ca))
    me = authority.issue("operator")
    shown = ("--tls-cert", str(me.certificate), "--tls-key", str(me.key))
    assert inagg(serving, "jobs", "--tls-ca", str(ca), *shown) == 0
    assert inagg(serving, "jobs", "--tls-ca", str(ca)) == 2
    assert inagg(serving, "jobs") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_secret_that_cannot_be_sent_is_wrong_usage(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INAGG_SECRET", "two words")
    assert inagg(switch, "jobs") == 2
    assert "visible ASCII" in capsys.readouterr().err
