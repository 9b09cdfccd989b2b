"""The file of `inagg switch --ready-file`: whose it is."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .new_files import write_whole

LOCK_S: Final = 2.0
"""Seconds to wait for the lock of a folder, which somebody else may hold for long."""


def claim(path: Path) -> str | None:
    """Remove what an earlier run has left there that was killed. Returns what `why_taken` does: then it stays."""
    with _alone(path):
        taken = why_taken(path)
        if taken is None:
            path.unlink(missing_ok=True)
        return taken


def write_own(path: Path, text: str) -> str | None:
    """Write it. Returns what `why_taken` does: then it is not written, since a switch that was started at the same time
    has been first. Raises OSError."""
    with _alone(path):
        taken = why_taken(path)
        if taken is None:
            write_whole(path, text)
        return taken


def why_taken(path: Path) -> str | None:
    """Reason why the file cannot be this process's: another switch runs, whose it is; None if it can."""
    pid = _pid_in(path)
    if pid is None or pid == os.getpid() or not _names(pid, path):
        return None
    return f"{path} is the ready file of another switch, which runs (process {pid}): name another with --ready-file"


def remove_own(path: Path) -> None:
    """Remove it, if this process has written it last. No error if it cannot be read."""
    if _pid_in(path) != os.getpid():  # also where the folder has gone
        return
    with _alone(path):
        if _pid_in(path) == os.getpid():
            path.unlink(missing_ok=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Inside, no other switch looks at this file or changes it: both lock its folder, so no file is left behind for
    that. A file system that knows no locks of folders, such as NFS, or somebody who holds this one for long, is in
    nobody's way: then it is as without."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it has gone, which is told when the file is written; or it may not be read
        yield
        return
    try:
        _lock(folder)
        yield
    finally:
        os.close(folder)  # which unlocks it


def _lock(folder: int) -> None:
    give_up_at = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                return
        except OSError:
            return
        time.sleep(0.01)


def _pid_in(path: Path) -> int | None:
    try:
        pid = json.loads(path.read_bytes())["pid"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return pid if isinstance(pid, int) else None


def _names(pid: int, path: Path) -> bool:
    """Whether a process runs that was started with this file: numbers of processes are given out again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(os.fsencode(path.name)) for word in words)
