"""Start a program in a network namespace, tied to the life of who started it.

`launcher` makes a command line of this file, which the new process runs before the program proper: it asks to be killed
when its parent dies, enters the namespace and executes the program. So nothing has to run between fork and exec in the
parent, and a parent that is killed leaves no program behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

NAMESPACES = Path("/run/netns")
"""Where iproute2 and pyroute2 keep the names of network namespaces (ip-netns(8))."""

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
CLONE_NEWNET = 0x4000_0000  # include/uapi/linux/sched.h
HERE = "-"
EXIT_NO_PROGRAM, EXIT_NOT_EXECUTABLE = 127, 126  # as a shell says it


def launcher(namespace: str | None, argv: Sequence[str]) -> list[str]:
    """The command line that runs ``argv`` in ``namespace`` (None: where the caller is)."""
    # -I and -S: it needs the standard library alone, not the folder that it lies in, and starts in a third of the time
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), namespace or HERE, *argv]


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that started this process ends. Ends it now if ``parent`` is no longer its parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def enter_namespace(name: str) -> None:
    """Move the calling thread into a network namespace; threads that it starts are there too (setns(2))."""
    with (NAMESPACES / name).open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def exit_status(error: OSError) -> int:
    """Return the status of a command that could not be run, as a shell has it."""
    return EXIT_NO_PROGRAM if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE


def main() -> None:
    """The new process: ``launch.py PARENT NAMESPACE PROGRAM [ARGUMENT...]``."""
    parent, namespace, *argv = sys.argv[1:]
    die_with_parent(int(parent))
    if namespace != HERE:
        enter_namespace(namespace)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"Error: cannot run {argv[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
