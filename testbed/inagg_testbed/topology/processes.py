"""The processes of a testbed: which they are, and how they end.

A process belongs to a testbed if it has its mark in the environment or lives in one of its network namespaces. The mark
is inherited, so what a script starts belongs to it too, whatever became of the script.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .base import MARK
from .launch import NAMESPACES

TERM_LIMIT_S = 3.0
"""How long processes may take to end by themselves before they are killed."""
KILL_LIMIT_S = 10.0
LOOK_EVERY_S = 0.02

PROC = Path("/proc")
PF_EXITING = 0x4  # include/linux/sched.h


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was seen. A number may be given again, so its start belongs to what it is."""

    pid: int
    started: int
    """Clock ticks after boot (proc(5), /proc/PID/stat, field 22)."""

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now, and has not ended."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return Process.of(self.pid) == self

    def command(self) -> str:
        """Its command line, for people; empty if it has none or has ended."""
        try:
            return (PROC / str(self.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return ""

    def send(self, number: int) -> None:
        """Send it a signal if it still runs."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _stat(pid: int) -> list[str] | None:
    """Fields 3 (state) and up of /proc/PID/stat; None if there is no such process."""
    try:
        # the name, field 2, may have any characters
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_ending(pid: int) -> bool:
    """Whether a process has ended, or has begun to (exit(2)), so that no signal counts any more."""
    fields = _stat(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & PF_EXITING)


def processes_of(mark: str, namespaces: Iterable[str] = ()) -> list[Process]:
    """All processes of a testbed but this one, of those that this user may look at."""
    inodes = {(NAMESPACES / name).stat().st_ino for name in namespaces if (NAMESPACES / name).exists()}
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in filter(str.isdigit, os.listdir(PROC)):
        if int(entry) == os.getpid():
            continue
        try:
            ours = wanted in (PROC / entry / "environ").read_bytes().split(b"\0")
            ours = ours or (bool(inodes) and (PROC / entry / "ns" / "net").stat().st_ino in inodes)
        except OSError:
            continue  # it has ended, or is somebody else's
        if ours and (process := Process.of(int(entry))) is not None:
            found.append(process)
    return found


def end_all(find: Callable[[], list[Process]], term_limit_s: float = TERM_LIMIT_S) -> list[Process]:
    """Ask all processes that ``find`` finds to end, then kill those that have not; what was found first.

    Goes on until none is found, since they may start others. Raises RuntimeError if some cannot be ended.
    """
    first = find()
    left = first
    for process in left:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)  # a stopped one would not hear of it
    deadline_s = time.monotonic() + term_limit_s
    while left and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
        left = find()
    deadline_s = time.monotonic() + KILL_LIMIT_S
    while left:
        for process in left:
            process.send(signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"cannot end process {', '.join(str(process.pid) for process in left)}")
        time.sleep(LOOK_EVERY_S)
        left = find()
    return first
