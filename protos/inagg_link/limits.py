"""Advice where a process has come to one of its system's limits."""

from __future__ import annotations

import errno
from typing import Final

NO_THREAD: Final = "can't start new thread"
"""Python's error where the process may have no more threads."""
MORE_THREADS: Final = "raise the limit of processes (ulimit -u, TasksMax=, a pod's pids)"
MORE_FILES: Final = "raise the limit of open files (ulimit -n, LimitNOFILE=)"


def advised(error: BaseException) -> str:
    """Text of an error, with what to do if it is one of the limits of a process."""
    if str(error) == NO_THREAD:
        return f"{error}: {MORE_THREADS}"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error}: {MORE_FILES}, or look what this process has open"
    return str(error)
