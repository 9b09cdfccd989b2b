"""The systemd unit, the Containerfile and the sbatch script run commands that exist; the script trains."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from inagg.cli import COMMANDS, make_root
from inagg_switch.cli.settings import settings_from
from inagg_switch.defaults import METRICS_PORT, WEB_PORT
from inagg_testbed.doctor.kernel import PORTS
from inagg_wire.layout import CONTROL_PORT, DATA_PORT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "inagg-switch.service"
SYSCTL = DEPLOY / "systemd" / "90-inagg.conf"
SBATCH = DEPLOY / "slurm" / "train.sbatch"


def parses(arguments: list[str]) -> dict[str, object]:
    """What a command of ours makes of its arguments."""
    command = make_root(COMMANDS).get_command(None, arguments[0])  # type: ignore[arg-type]
    assert command is not None, arguments
    return command.make_context(arguments[0], arguments[1:]).params


def test_the_unit_starts_a_switch_with_the_options_of_its_file() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    text = UNIT.read_text()
    unit.read_string(text)
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/inagg")
    for options in re.findall(r"OPTIONS=(.*)", text):
        line = [part for argument in arguments for part in (options.split() if argument == "$OPTIONS" else [argument])]
        settings_from(parses(line), None)  # some options are not for a leaf


def test_the_unit_goes_on_without_a_shard_and_starts_again_unless_the_options_are_wrong() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    assert unit["Service"]["OOMPolicy"] == "continue"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Service"]["RestartPreventExitStatus"] == str(click.UsageError("").exit_code)


def test_the_ports_of_a_switch_are_reserved_as_doctor_wants_it() -> None:
    (first, last) = re.findall(r"^net.ipv4.ip_local_reserved_ports = (\d+)-(\d+)$", SYSCTL.read_text(), re.M)[0]
    reserved = range(int(first), int(last) + 1)
    assert {WEB_PORT, METRICS_PORT, CONTROL_PORT, DATA_PORT} <= set(reserved)
    assert reserved == PORTS


def with_credentials() -> str:
    """The unit with the lines on credentials that are comments in it."""
    return re.sub(r"^#(?=LoadCredential=)", "", UNIT.read_text(), flags=re.M)


def test_the_unit_names_a_credential_for_each_option_that_names_its_copy() -> None:
    text = with_credentials()
    named = re.findall(r"(--[a-z-]+) /run/credentials/inagg-switch\.service/([a-z.-]+)", text)
    assert [name for _, name in named] == re.findall(r"^LoadCredential=([a-z.-]+):/etc/inagg/\1$", text, re.M)
    command = make_root(COMMANDS).get_command(None, "switch")  # type: ignore[arg-type]
    assert command is not None
    assert {option for option, _ in named} <= {option for one in command.params for option in one.opts}
    assert {option for option, _ in named} >= {"--tls-key", "--secret-file", "--parent-secret-file"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on PATH")
@pytest.mark.parametrize("text", [UNIT.read_text(), with_credentials()], ids=["as it is", "with credentials"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, text: str) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/inagg/bin/inagg", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert not said


def test_the_image_runs_a_switch() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    lines = dict(line.split(" ", 1) for line in text.splitlines() if line[:1].isupper())
    assert json.loads(lines["ENTRYPOINT"]) == ["inagg"]
    parses(json.loads(lines["CMD"]))
    (warmup,) = re.findall(r"inagg (warmup[^&\n]*)", text)
    parses(warmup.split())


SCONTROL = """#!/bin/sh
echo localhost
"""
SRUN = """#!/bin/sh
shift  # --overlap
exec "$@"
"""


@pytest.mark.slow
def test_the_sbatch_script_trains_and_ends_its_switch(tmp_path: Path) -> None:
    """With what Slurm would run in its place: `srun` on one node."""
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "SLURM_SUBMIT_DIR": str(tmp_path),
        "RANKS_PER_NODE": "2", "INAGG_LOCAL_SIZE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    script = [str(SBATCH), str(ROOT / "examples" / "ddp_hook.py")]
    done = subprocess.run(["bash", *script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the switch summed 40 tensors") == 2
    assert "switch_stopped" in done.stderr
    assert not list(tmp_path.glob("*.json"))


def test_the_sbatch_script_waits_for_its_own_switch_though_its_job_was_requeued(tmp_path: Path) -> None:
    """A job that is requeued has the number that it had, and may find the ready file of the node that died."""
    programs = {"scontrol": SCONTROL, "srun": "#!/bin/sh\necho ranks run\n", "inagg": "#!/bin/sh\nexit 1\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "inagg-switch.7.json").write_text("{}")
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1", "SLURM_SUBMIT_DIR": str(tmp_path),
    }  # fmt: skip
    command = ["bash", str(SBATCH), "train.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the switch on localhost did not start" in done.stderr
    assert "ranks run" not in done.stdout


def test_the_sbatch_script_says_what_it_needs() -> None:
    done = subprocess.run(["bash", str(SBATCH)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "say what to run" in done.stderr
