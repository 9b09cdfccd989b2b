"""The file of `inagg switch --ready-file`: whose it is."""

from __future__ import annotations

import json
import os
from pathlib import Path


def why_taken(path: Path) -> str | None:
    """Reason why the file cannot be this process's: another switch runs, whose it is; None if it can."""
    pid = _pid_in(path)
    if pid is None or pid == os.getpid() or not _names(pid, path):
        return None
    return f"{path} is the ready file of another switch, which runs (process {pid}): name another with --ready-file"


def remove_own(path: Path) -> None:
    """Remove it, if this process has written it last. No error if it cannot be read."""
    if _pid_in(path) == os.getpid():
        path.unlink(missing_ok=True)


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
