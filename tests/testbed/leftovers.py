"""Run a command of ours, send it a signal, and look for whatever it may have left on the machine."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_testbed.switch_process import COMMAND

MARK = "INAGG_TEST_MARK"
END_LIMIT_S = 60.0
GONE_LIMIT_S = 5.0
"""Processes that a signal has ended take a moment to be gone: helpers of multiprocessing end when their pipe closes."""


@dataclass(frozen=True)
class Run:
    """How a command ended, and what was still there then."""

    code: int
    out: str
    errors: str
    left: list[str]


TORCH_CACHE = "torchinductor_*"
"""PyTorch's own folder of compiled kernels, one for each user, which it keeps for later on purpose."""


def processes_marked(mark: str) -> list[str]:
    """Command lines of the processes with a mark in their environment, which children inherit."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended meanwhile, or is not ours
    return found


def network_of(name: str) -> list[str]:
    """The namespaces of a testbed, and interfaces of ours where none should ever be: in this process's network.

    Other testbeds may come and go meanwhile, so only its own count.
    """
    folder = Path("/run/netns")
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    ours = [f"namespace {found}" for found in names if found.startswith(f"inagg-{name}-")]
    return sorted(ours + [f"interface {path.name}" for path in Path("/sys/class/net").glob("w[0-9]*")])


def run_and_signal(
    arguments: Sequence[str],
    number: signal.Signals,
    folder: Path,
    when: Callable[[Sequence[Path]], bool] | float,
    *,
    to_group: bool = False,
) -> Run:
    """Run `inagg` with ``arguments`` and send the signal after ``when`` seconds, or once ``when`` is true of the files
    in its folder for temporary files and of its output. ``folder``: an empty one, which must be so again afterwards.

    ``to_group``: to all processes of its group, as a terminal sends Ctrl-C.
    """
    mark = secrets.token_hex(8)
    temporary, states, here = folder / "tmp", folder / "run", folder / "here"
    for made in (temporary, states, here):
        made.mkdir()
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "XDG_RUNTIME_DIR": str(states)}
    out, errors = folder / "out", folder / "errors"
    with out.open("wb") as out_file, errors.open("wb") as errors_file:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment,
            cwd=here,  # a demo that ends before the signal leaves its report here
            stdout=out_file,
            stderr=errors_file,
            start_new_session=True,
        )
        deadline_s = time.monotonic() + END_LIMIT_S
        if isinstance(when, float):
            time.sleep(when)
        else:
            while not when([out, errors, *temporary.rglob("*")]):
                assert process.poll() is None, errors.read_text()
                assert time.monotonic() < deadline_s, errors.read_text()
                time.sleep(0.02)
        if process.poll() is None:
            (os.killpg if to_group else os.kill)(process.pid, number)
        process.wait(END_LIMIT_S)
    deadline_s = time.monotonic() + GONE_LIMIT_S
    while True:
        left = processes_marked(mark)
        kept = temporary.glob(TORCH_CACHE)
        left += [str(path) for path in ({*temporary.iterdir()} - {*kept}) | {*(states / "inagg").glob("*")}]
        left += network_of(f"run-{process.pid}")
        if not left or time.monotonic() > deadline_s:
            return Run(process.returncode, out.read_text(), errors.read_text(), left)
        time.sleep(0.05)
