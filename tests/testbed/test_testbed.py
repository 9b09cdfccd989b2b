"""`inagg testbed`, as a user runs it: a real switch, real ranks, faults, a recording and its replay."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inagg.cli import COMMANDS, make_root, run
from inagg_testbed.switch_process import COMMAND
from inagg_testbed.testbed import cli
from inagg_testbed.testbed.run_command import failed_words
from inagg_testbed.testbed.running import Ended

SCRIPT = """
import os
import numpy as np
from inagg_host.allreduce import AllReduce

rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
values = np.random.default_rng(rank).standard_normal(100_000, np.float32)
with AllReduce() as all_reduce:  # all that it needs is in the environment
    for _ in range(3):
        sums = all_reduce(values.copy())
print("format", all_reduce.config.format, "resent", all_reduce.counters.resent > 0)
print("sums", sums.tobytes().hex()[:64])
"""


def test_a_run_with_faults_is_recorded_and_replays_bit_for_bit(tmp_path: Path) -> None:
    recording = tmp_path / "run.pcap"
    options = ["--workers", "2", "--loss", "0.05", "--duplicate", "0.05", "--fault-seed", "7", "--format", "nat4"]
    command = [*COMMAND, "testbed", *options, "--record", str(recording), "--", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said[0] == "[w0] format nat4 resent True"
    assert said[1].removeprefix("[w0]") == said[3].removeprefix("[w1]")
    assert "--fault-seed 7" in done.stderr

    again = subprocess.run([*COMMAND, "replay", "--json", str(recording)], capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stdout + again.stderr
    for line in map(json.loads, again.stdout.splitlines()):
        assert line["identical"]
        assert line["whole"]
        assert line["fault_seed"] == 7
        assert line["runs"][0]["exit_code"] == 0
        assert line["datagrams_out"] >= 2 * 3 * (100_000 // 2896)


def test_a_recording_for_which_there_was_no_room_is_said_to_be_a_part(tmp_path: Path) -> None:
    recording = tmp_path / "run.pcap"
    command = [*COMMAND, "testbed", "--workers", "2", "--record", str(recording), "--", sys.executable, "-c", SCRIPT]
    full = ["bash", "-c", 'ulimit -f 200; exec "$@"', "bash"]  # KiB of each file
    done = subprocess.run([*full, *command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"recorded in part (the switch was killed, or its disk was full) in {recording}" in done.stderr


@pytest.mark.parametrize("link", [(), pytest.param(("--link", "none"), marks=pytest.mark.root)])
def test_the_live_view_can_be_reached_from_here_wherever_the_switch_is(link: tuple[str, ...]) -> None:
    command = [*COMMAND, "testbed", "--workers", "1", *link, "--web", "127.0.0.1:0", "--", "sleep", "60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as testbed:
        assert testbed.stderr is not None
        url = next(found[0] for line in testbed.stderr if (found := re.findall(r"http://\S+/", line)))
        with urllib.request.urlopen(f"{url}api/live", timeout=60) as reply:  # when the switch has started
            assert json.load(reply)["now"]["driver"] == "software"
        testbed.send_signal(signal.SIGINT)


def test_the_status_of_a_script_that_fails_is_that_of_the_testbed() -> None:
    command = [*COMMAND, "testbed", "--workers", "2", "--json", "--", "sh", "-c", "exit $((RANK * 5))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 5
    end = json.loads(done.stdout)
    assert end["exit_code"] == 5
    assert [rank["rank"] for rank in end["ranks"]] == [0, 1]
    assert not end["ranks"][1]["told_to_end"]


def test_only_ranks_that_were_told_to_end_are_told_of() -> None:
    by_itself = [Ended(0, 0, 1.0, asked=False), Ended(1, 5, 1.0, asked=False)]
    assert failed_words(by_itself) == "rank 1 failed with exit status 5"
    assert failed_words([*by_itself, Ended(2, 143, 1.1, asked=True)]).endswith("; 1 other was told to end")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fault-seed", "1", "--", "true"], "nothing to seed"),
        (["--link", "fast", "--", "true"], "is no rate of a link"),
        (["--workers", "33", "--", "true"], "one switch serves 1 to 32; put them into --racks"),
        (["--workers", "2"], "COMMAND"),
        (["run", "--in", "nowhere", "--", "true"], "inagg testbed up --name nowhere"),
        (["run", "--in", "nowhere", "--workers", "2", "--", "true"], "leave out --workers"),
        (["down", "--name", "nowhere"], "no testbed 'nowhere'"),
        (["exec", "--name", "nowhere", "w0", "--", "true"], "no testbed 'nowhere'"),
        (["up", "--name", "a/b"], "cannot name a testbed"),
        (["statu"], "'statu' is no subcommand, and no program that can be run here. Did you mean 'status'?"),
        (["help"], "Subcommands: "),
        (["--racks", "2", "--trunk", "1gbit", "--", "true"], "give --link too"),
        (["--link", "1gbit", "--trunk", "1gbit", "--", "true"], "give --racks too"),
        (["--trunk", "1gbit", "--", "true"], "give --racks and --link too"),
    ],
)
def test_wrong_usage_is_told_and_makes_nothing(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli.testbed, arguments)
    assert done.exit_code != 0
    assert words in done.output


def test_a_name_that_no_testbed_may_have_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli.testbed, ["up", "--name", "a b"]).exit_code == 2
    assert CliRunner().invoke(cli.testbed, ["up", "--name", "a" * 50]).exit_code == 2


def test_a_program_on_the_path_needs_no_dashes_before_it() -> None:
    context = click.Context(cli.testbed)
    cli.testbed.parse_args(context, ["true"])
    assert cli.testbed.resolve_command(context, [*context._protected_args, *context.args])[0] == "run"


def test_options_of_run_are_completed_where_it_is_left_out() -> None:
    context = click.Context(cli.testbed)
    assert "--workers" in {item.value for item in cli.testbed.shell_complete(context, "--wo")}
    assert "status" in {item.value for item in cli.testbed.shell_complete(context, "st")}


def test_without_root_a_link_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from inagg_testbed.topology import TopologyError, namespaces

    def refuse() -> None:
        raise TopologyError("sudo")

    monkeypatch.setattr(namespaces, "require_root", refuse)
    done = CliRunner().invoke(cli.testbed, ["--link", "1gbit", "--", "true"])
    assert done.exit_code == 1
    assert "sudo" in done.output


def test_the_commands_are_in_the_root_command() -> None:
    assert run(make_root(COMMANDS), ["testbed", "--help"]) == 0
    assert run(make_root(COMMANDS), ["replay", "--help"]) == 0
