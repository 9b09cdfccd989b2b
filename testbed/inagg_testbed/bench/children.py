"""Processes that do the work of benchmarks, and of the demo: how they start, talk, fail and end."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from typing import Any, Final

import click

from inagg_link.first_start import telling
from inagg_link.spawning import start_deaf

from ..topology.launch import die_with_parent

STOP_LIMIT_S = 10.0

_spawn = multiprocessing.get_context("spawn")

NO_SHARED_MEMORY: Final = {
    errno.ENOSPC: "has no room: empty it, or give it more (docker run --shm-size 1g)",
    errno.EROFS: "is read-only: mount a tmpfs there (docker run --tmpfs /dev/shm)",
    errno.EACCES: "may not be written to: mount a tmpfs there (docker run --tmpfs /dev/shm), with mode 1777",
    errno.ENOSYS: "is not there: mount a tmpfs there (docker run --tmpfs /dev/shm)",
}
"""Texts on what is wrong with /dev/shm, and what to do, by the error of who wants to share memory."""


def common_barrier(parties: int) -> Barrier:
    """Barrier for so many children, to be given to them as an argument. It sends nothing. Raises `click.ClickException`
    where processes cannot share memory."""
    try:
        return _spawn.Barrier(parties)
    except OSError as error:
        if error.errno not in NO_SHARED_MEMORY:
            raise
        why = f"/dev/shm {NO_SHARED_MEMORY[error.errno]}"
        raise click.ClickException(f"worker processes cannot share memory to wait for each other: {why}") from None


class ChildEnded(click.ClickException, RuntimeError):
    """A child process is gone."""


class ChildSilent(click.ClickException, TimeoutError):
    """Child processes have said nothing for too long."""


KILLED: Final = " (killed: was there too little memory?)"
"""Words about a child that SIGKILL has ended."""
TOO_SLOW: Final = ": give a smaller --size, or a faster --link"
"""Advice where children are silent because they do what they were told, for too long."""


class Sign(Enum):
    """Messages of children of which only they themselves know."""

    COMPILING = "compiling"


COMPILING = Sign.COMPILING
"""It lives, and compiles: whoever waits is to be patient."""
COMPILING_S = 2.0
"""Between two of them: a pipe holds some hundred, and whoever writes to a full one stands still."""


class Child:
    """A spawned process that runs `main(connection, *args)`, with a pipe to talk over; it ends when that is closed."""

    def __init__(self, name: str, main: Callable[..., None], *args: object) -> None:
        ours, theirs = _spawn.Pipe()
        self.name = name
        self._connection: Connection = ours
        self._process: SpawnProcess = _spawn.Process(
            target=_run_child, args=(main, theirs, *args), name=name, daemon=True
        )
        start_deaf(self._process, [signal.SIGINT])
        theirs.close()

    def send(self, message: object) -> None:
        """RuntimeError: the child has failed or ended, as `receive` says it."""
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            while True:  # what it said before it ended; then that it has ended
                self._hear(0)

    def receive(self, limit_s: float) -> Any:
        """The child's next message. RuntimeError: it failed, and how; `ChildEnded`: it is gone. MemoryError: for want
        of memory. `ChildSilent`: nothing within `limit_s`, not even that it compiles."""
        while (message := self._hear(limit_s)) is COMPILING:
            pass
        return message

    def _hear(self, limit_s: float) -> Any:
        """Return the next message, as `receive`; or `COMPILING`."""
        if not self._connection.poll(limit_s):
            raise ChildSilent(f"{self.name} said nothing within {limit_s:g} s")
        try:
            failure, message = self._connection.recv()
        except (EOFError, ConnectionResetError):  # the latter: what it was told last is unread
            self._process.join(STOP_LIMIT_S)
            code = self._process.exitcode
            killed = KILLED if code == -signal.SIGKILL else ""
            raise ChildEnded(f"{self.name} ended with exit code {code}{killed}") from None
        if isinstance(failure, MemoryError):
            raise MemoryError(f"{self.name}: {failure}")
        if failure is not None:
            raise RuntimeError(f"{self.name} failed:\n{failure}")
        return message

    def fileno(self) -> int:
        """File descriptor of the pipe: readable when `receive` need not wait."""
        return self._connection.fileno()

    def hang_up(self) -> None:
        """Close the pipe, and do not wait until the process has noticed."""
        self._connection.close()

    def close(self) -> None:
        """End the process: by closing its pipe, and if that does not help by force."""
        self.hang_up()
        self._process.join(STOP_LIMIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def kill(self) -> None:
        """End the process at once; for when its work is of no more use."""
        self._process.kill()
        self.close()


def receive_all(children: Sequence[Child], limit_s: float, advice: str = "") -> list[Any]:
    """The next message of each, within ``limit_s`` in all, and as much again whenever one says that it compiles. As
    `Child.receive`, of the first that fails, whatever others wait for: it may be that one. ``advice``: what to do if
    they are silent."""
    deadline_s = time.monotonic() + limit_s
    silent = {child.fileno(): at for at, child in enumerate(children)}
    messages: list[Any] = [None] * len(children)
    while silent:
        heard = wait(list(silent), max(0.0, deadline_s - time.monotonic()))
        if not heard:
            names = ", ".join(children[at].name for at in silent.values())
            raise ChildSilent(f"{names} said nothing within {limit_s:g} s{advice}")
        for descriptor in [d for d in silent if d in heard]:
            message = children[silent[descriptor]]._hear(0)
            if message is COMPILING:
                deadline_s = time.monotonic() + limit_s
            else:
                messages[silent.pop(descriptor)] = message
    return messages


def ask(children: Sequence[Child], message: object, limit_s: float, advice: str = "") -> list[Any]:
    """Tell all the same, and hear the answer of each: as `receive_all`."""
    for child in children:
        child.send(message)
    return receive_all(children, limit_s, advice)


def slowest(times: Iterable[Sequence[float]]) -> list[float]:
    """Seconds of each run on the rank that took longest; ``times``: those of all runs, by rank."""
    return list(map(max, zip(*times, strict=True)))


def requests(connection: Connection) -> Iterator[Any]:
    """In a child: what it is told, until the parent hangs up. A child that then leaves by returning leaves its jobs,
    which an exception would end for all ranks."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError):  # the latter: it has not read all that it was told
            return
        yield message


@contextmanager
def gloo_rank(rank: int, workers: int, store: str) -> Iterator[None]:
    """In a child: a rank of ``workers`` on one processor core, with a process group of Gloo, whose ranks meet in the
    file ``store``. To be entered before anything imports torch."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    yield
    dist.destroy_process_group()  # not after a failure, whose traceback holds models that are to go before their group


def messages(children: list[Child], limit_s: float) -> Iterator[tuple[Child, Any]]:
    """Yield who says what, as it comes. All are heard, so that none waits until its pipe has room, however
    much it has to say. Whoever iterates takes those off the list that have said all; it ends when the list is empty.
    Raises as `Child.receive`; `ChildSilent` if all are."""
    while children:
        by_pipe = {child.fileno(): child for child in children}
        heard = wait(list(by_pipe), limit_s)
        if not heard:
            raise ChildSilent(f"{', '.join(child.name for child in children)} said nothing within {limit_s:g} s")
        for child in (child for pipe, child in by_pipe.items() if pipe in heard):
            if (message := child._hear(0)) is not COMPILING:
                yield child, message


@contextmanager
def crew() -> Iterator[list[Child]]:
    """A list for children: at the end they are told to end and waited for; after an exception they are killed."""
    children: list[Child] = []
    try:
        yield children
    except BaseException:
        for child in children:
            child.kill()
        raise
    for child in children:
        child.close()


def _run_child(main: Callable[..., None], connection: Connection, *args: object) -> None:
    die_with_parent(os.getppid())  # else one that computes would find out much later
    # A terminal sends Ctrl-C to all of us, and only the parent is to act. From now on it is not blocked but ignored: a
    # switch that this process starts would inherit either, and its handlers end the latter alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    said_s = float("-inf")

    def compiling(_: int) -> None:
        nonlocal said_s
        if (now_s := time.monotonic()) - said_s >= COMPILING_S:
            said_s = now_s
            connection.send((None, COMPILING))

    try:
        with telling(compiling):
            main(connection, *args)
    except BaseException as error:
        # want of memory is no failure of ours, for sizes that a user chose
        failure = MemoryError(str(error)) if isinstance(error, MemoryError) else traceback.format_exc()
        with suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone, or has hung up to end us
            connection.send((failure, None))
