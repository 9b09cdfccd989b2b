"""`inagg jobs`, `top` and `why` against a control service: what they print, and their exit status."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.switch.service.certificates import Authority
from tests.switch.service.serving import Serving, job_spec

from inagg.cli import COMMANDS, make_root, run
from inagg_switch.cli import connect
from inagg_switch.cli.commands import jobs as jobs_command
from inagg_switch.driver import JobCounters, SlotWait
from inagg_switch.service.access import Access
from inagg_switch.service.security import Security


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
    assert inagg(switch, "top", "nope", "--once", "--interval", "0.1") == 1
    assert "no job 'nope'" in capsys.readouterr().err


@pytest.fixture
def over(switch: Serving) -> Serving:
    """A switch whose only job, long-ripe-elk, has ended."""
    switch.join_all(job_spec("long-ripe-elk"))
    switch.leave(0, "long-ripe-elk", end=True)
    return switch


@pytest.mark.parametrize("words", [("evict", "lon"), ("top", "lon", "--once")])
def test_the_beginning_of_the_name_of_a_job_that_has_ended_is_known(
    words: tuple[str, ...], over: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inagg(over, *words) == 1
    ended = r"long-ripe-elk ended [0-9.]+ s ago: rank 0 ended job 'long-ripe-elk'"
    assert re.fullmatch(rf"Error: no job that runs begins with 'lon': {ended}\n", capsys.readouterr().err)


def test_of_several_jobs_that_have_ended_those_are_named_that_begin_so(
    over: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    over.join_all(job_spec("long-red-fox"))
    over.leave(0, "long-red-fox", end=True)
    assert inagg(over, "evict", "long") == 1
    assert "of those that have ended, 2 do: long-red-fox, long-ripe-elk\n" in capsys.readouterr().err


def test_a_job_that_has_ended_does_not_hide_one_that_runs(over: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    over.join_all(job_spec("long-red-fox"))
    assert inagg(over, "evict", "long") == 0
    assert capsys.readouterr().out == "job long-red-fox has ended\n"


@pytest.mark.parametrize("words", [("jobs",), ("why", "train")])
def test_what_a_table_says_is_one_write(
    words: tuple[str, ...], switch: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `| head -1` has taken all when it closes its end."""
    switch.join_all(job_spec("old"))
    switch.leave(0, "old", end=True)
    waiting = switch.join_later(0, job_spec("train"))
    switch.waiting(0, name="train")
    writes: list[str] = []

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stdout", Pipe())
    inagg(switch, *words)
    assert [write.count("\n") > 1 for write in writes] == [True]
    switch.join_later(1, job_spec("train")).result()
    waiting.result()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("jobs", "--jsn"), ["--json"]),
        (("top", "--cuont"), ["--count"]),
        (("jobs", "--wat"), []),
    ],
)
def test_a_hint_for_an_unknown_option_is_the_one_that_is_near(
    words: tuple[str, ...], hint: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert inagg(None, *words) == 2
    (said,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("Error:")]
    assert re.findall(r"--\w+", said.replace(words[1], "")) == hint


def test_what_is_no_number_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(None, "switch", "--datagram-bytes", "9000KB") == 2
    assert "'9000KB' is not a valid integer." in capsys.readouterr().err


def test_why_a_job_waits_for_ranks_to_join(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = switch.join_later(0, job_spec("train"))
    switch.waiting(0, name="train")
    assert inagg(switch, "why", "train") == 4
    assert "The job waits for rank 1 of 2 to join." in capsys.readouterr().out
    switch.join_later(1, job_spec("train")).result()
    waiting.result()
    assert inagg(switch, "why", "train") == 0


def test_why_a_job_waits_for_contributions(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    number = switch.join_all(job_spec("train"))[0].job
    switch.driver.waits[number] = [SlotWait(slot, 3, (1,), 7.0) for slot in range(5)]
    switch.driver.job_counters[number] = JobCounters([0, 0], [0, 0], [0, 0], [0, 0], [0, 0])
    assert inagg(switch, "why", "train", "--slots", "2") == 4
    said = capsys.readouterr().out
    assert "5 slots of the 5 that wait miss rank 1, the oldest for 7.0 s" in said
    assert "... and 3 slots that wait for less long (--slots N lists N)" in said
    assert inagg(switch, "why", "train", "--json") == 4
    answer = json.loads(capsys.readouterr().out)
    assert (answer["exit_code"], answer["verdict"], answer["slots_waiting"]) == (4, "waits", 5)
    assert inagg(switch, "why", "train", "--over", "8") == 0


def test_why_of_a_job_that_is_over(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    switch.join_all(job_spec("train"))
    switch.leave(0, "train", end=True)
    assert inagg(switch, "why", "train", "--watch") == 3
    assert "rank 0 ended job 'train'" in capsys.readouterr().out


def test_why_of_a_job_that_never_was(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(switch, "why", "nope") == 1
    assert "no job 'nope'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("jobs",), ("top", "--once"), ("why", "train")])
def test_a_switch_that_is_not_there_is_said_in_one_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert inagg(None, *arguments, "--switch", "127.0.0.1:1") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "Error: cannot reach the switch at 127.0.0.1:1: is `inagg switch` running there, without TLS? "
        "(Failed to connect to remote host: Connection refused)\n"
    )


@pytest.mark.parametrize("where", ["localhost", "::1", "localhost:99999", ":47100", "localhost:http", "127.0.0.1:1,"])
def test_an_address_without_a_host_and_a_port_is_wrong_usage(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """gRPC would take 80 or another port, and find nobody there."""
    assert inagg(None, "jobs", "--switch", where) == 2
    assert "give HOST:PORT, as `inagg switch` prints it" in capsys.readouterr().err


def test_grpc_adds_nothing_to_the_sentence(authority: Authority) -> None:
    """It reads how much it may print when it is imported, so in a process of its own."""
    environment = {**os.environ, "INAGG_CA": str(authority.pair.certificate)}
    environment.pop("GRPC_VERBOSITY", None)
    with socket.create_server(("127.0.0.1", 0)) as no_tls:
        address = f"127.0.0.1:{no_tls.getsockname()[1]}"
        threading.Thread(target=_answer_with_text, args=(no_tls,), daemon=True).start()
        command = (sys.executable, "-m", "inagg", "jobs", "--switch", address)
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert [line.partition(":")[0] for line in ended.stderr.splitlines()] == ["Error"]


def test_a_switch_with_tls_is_said_to_have_it_with_the_option_to_give(
    serve: Callable[..., Serving], authority: Authority, stranger: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = authority.issue("switch")
    switch = serve(security=Security(pair.certificate, pair.key))
    for options, what in (
        ((), "it serves with TLS: give --tls-ca (INAGG_CA)"),
        (("--tls-ca", str(stranger.pair.certificate)), "its certificate cannot be trusted (unable to get local issuer"),
        (("--tls-ca", str(authority.pair.key)), "authority.key holds a key, and no certificate"),
    ):
        assert inagg(switch, "jobs", *options) != 0
        assert what in " ".join(capsys.readouterr().err.split())


def _answer_with_text(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            with server.accept()[0] as connection:
                connection.sendall(b"this is no TLS\n")


def test_the_switch_is_that_of_the_environment(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INAGG_SWITCH", switch.server.address)
    assert inagg(None, "jobs") == 0
    assert switch.server.address in capsys.readouterr().out


def test_of_several_switches_the_first_that_answers_is_asked(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers take the same list."""
    monkeypatch.setenv("INAGG_SWITCH", f"127.0.0.1:1, {switch.server.address}")
    assert inagg(None, "jobs") == 0
    assert switch.server.address in capsys.readouterr().out


def test_of_several_switches_one_that_takes_connections_and_says_nothing_is_passed_over(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a process that is stopped."""
    monkeypatch.setattr(connect, "TRY_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        hangs = f"127.0.0.1:{stopped.getsockname()[1]}"
        assert inagg(None, "jobs", "--switch", f"{hangs},{switch.server.address}") == 0
        assert switch.server.address in capsys.readouterr().out
        assert inagg(None, "jobs", "--switch", f"{hangs},127.0.0.1:1") == 1
    said = capsys.readouterr().err
    assert f"the switch at {hangs} did not answer in time" in said
    assert "cannot reach the switch at 127.0.0.1:1" in said


def test_of_several_switches_that_do_not_answer_all_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(None, "jobs", "--switch", "127.0.0.1:1,127.0.0.1:2") == 1
    said = capsys.readouterr().err
    assert said.count("Error: ") == 1
    for address in ("127.0.0.1:1", "127.0.0.1:2"):
        assert f"cannot reach the switch at {address}: is `inagg switch` running there" in said


def test_who_named_no_switch_is_told_how(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for parameter in jobs_command.params:
        if parameter.name == "switch":
            monkeypatch.setattr(parameter, "default", "127.0.0.1:1")
    assert inagg(None, "jobs") == 1
    assert "name another with --switch, or in INAGG_SWITCH as for workers" in capsys.readouterr().err


# --- jobs by as much of their names as is unique ---


def test_a_job_is_named_by_what_it_alone_begins_with(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train-mint-otter-417", "train-calm-fox-3", "eval"):
        switch.join_all(job_spec(name))
    assert inagg(switch, "why", "train-m") == 0
    assert "Nothing waits" in capsys.readouterr().out
    assert inagg(switch, "top", "ev", "--once", "--json", "--interval", "0.1") == 0
    assert [job["job"]["spec"]["name"] for job in json.loads(capsys.readouterr().out)["jobs"]] == ["eval"]
    assert inagg(switch, "evict", "eva") == 0
    assert capsys.readouterr().out == "job eval has ended\n"


@pytest.mark.parametrize("command", ["why", "top", "evict"])
def test_an_empty_name_is_wrong_usage_and_names_no_job(
    command: str, switch: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a script whose variable is not set: every job begins with it."""
    switch.join_all(job_spec("train"))
    assert inagg(switch, command, "", *(["--once"] if command == "top" else [])) == 2
    assert "no job is named" in capsys.readouterr().err
    assert [job.spec.name for job in switch.client.list().jobs] == ["train"]


def test_a_name_that_is_the_beginning_of_others_is_that_job(switch: Serving) -> None:
    for name in ("train", "train-2"):
        switch.join_all(job_spec(name))
    assert inagg(switch, "evict", "train") == 0
    assert inagg(switch, "evict", "train") == 0  # now it is the beginning of one alone
    assert inagg(switch, "evict", "train") == 1


@pytest.mark.parametrize("command", ["why", "top", "evict"])
def test_what_several_jobs_begin_with_names_none(
    command: str, switch: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train-mint-otter-417", "train-calm-fox-3"):
        switch.join_all(job_spec(name))
    assert inagg(switch, command, "train") == 1
    said = capsys.readouterr().err
    assert said == "Error: 2 jobs begin with 'train': train-calm-fox-3, train-mint-otter-417\n"
    assert inagg(switch, command, "train-mint-oter-417") == 1
    assert "Did you mean train-mint-otter-417?" in capsys.readouterr().err


def test_a_job_that_is_over_is_found_by_its_beginning_too(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    switch.join_all(job_spec("train-mint-otter-417"))
    switch.leave(0, "train-mint-otter-417", end=True)
    assert inagg(switch, "why", "train") == 3


def test_why_without_a_job_is_of_all_that_wait(switch: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert inagg(switch, "why") == 0
    assert "No jobs on the switch" in capsys.readouterr().out
    switch.join_all(job_spec("fine"))
    assert inagg(switch, "why") == 0
    assert capsys.readouterr().out.startswith("Job fine: running")
    waiting = switch.join_later(0, job_spec("stuck"))
    switch.waiting(0, name="stuck")
    assert inagg(switch, "why") == 4
    said = capsys.readouterr().out
    assert "Job stuck: joining" in said
    assert "Job fine" not in said
    assert said.endswith("In 1 job nothing waits.\n")
    assert inagg(switch, "why", "--json") == 4
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["job"]["spec"]["name"], line["verdict"]) for line in lines] == [("fine", "moves"), ("stuck", "waits")]
    switch.join_later(1, job_spec("stuck")).result()
    waiting.result()
    assert inagg(switch, "why") == 0
    assert capsys.readouterr().out == "Nothing waits: 2 jobs run.\n"


def test_why_as_json_has_a_line_for_each_job_as_its_help_says(
    switch: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inagg(None, "why", "--help") == 0
    assert "a JSON object a line, one for each job" in " ".join(capsys.readouterr().out.split())
    names: list[str] = []
    for name in ("", "first", "second"):
        if name:
            switch.join_all(job_spec(name))
            names.append(name)
        assert inagg(switch, "why", "--json") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(line["job"]["spec"]["name"], line["exit_code"]) for line in lines] == [(name, 0) for name in names]


def test_the_shell_completes_names_of_jobs(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train-mint-otter-417", "eval"):
        switch.join_all(job_spec(name))
    monkeypatch.setenv("INAGG_SWITCH", switch.server.address)
    assert completed(monkeypatch, capsys, "inagg why tr") == ["train-mint-otter-417"]
    assert set(completed(monkeypatch, capsys, "inagg evict ")) == {"train-mint-otter-417", "eval"}
    monkeypatch.setenv("INAGG_SWITCH", "127.0.0.1:1")
    assert completed(monkeypatch, capsys, "inagg why tr") == []
    monkeypatch.setenv("INAGG_SECRET", "two words")
    assert completed(monkeypatch, capsys, "inagg why tr") == []


def test_the_shell_completes_commands_without_importing_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imports {name}"))
    assert completed(monkeypatch, capsys, "inagg w") == ["why", "warmup"]


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    """What bash would offer after ``line``."""
    monkeypatch.setenv("_INAGG_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run(make_root(COMMANDS), [])
    return [item.partition(",")[2] for item in capsys.readouterr().out.splitlines() if item]


def test_tls_is_implied_by_its_options(
    serve: Callable[..., Serving], authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, ca = authority.issue("switch"), authority.pair.certificate
    serving = serve(Security(pair.certificate, pair.key, client_ca=ca), Access(tls=True, ca=ca))
    me = authority.issue("operator")
    shown = ("--tls-cert", str(me.certificate), "--tls-key", str(me.key))
    assert inagg(serving, "jobs", "--tls-ca", str(ca), *shown) == 0
    assert inagg(serving, "jobs", "--tls-ca", str(ca)) == 1
    assert inagg(serving, "jobs") == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_secret_that_cannot_be_sent_is_wrong_usage(
    switch: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INAGG_SECRET", "two words")
    assert inagg(switch, "jobs") == 2
    assert "visible ASCII" in capsys.readouterr().err
