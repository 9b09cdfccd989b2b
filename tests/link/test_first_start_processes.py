"""Processes that need the same loops: one compiles them, the others wait for it."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from inagg_link.first_start import LOOK_S, Unit, compile_all

CONTEXT = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0


def take_a_turn(path: Path, orders: Connection) -> None:
    """In a process of its own: say when its turn has come, and end it when told to."""

    def compile_it() -> None:
        orders.send("in")
        orders.recv()

    compile_all([Unit(str(path), compile_it)])


class Taker:
    """That process, seen from here."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._orders, theirs = CONTEXT.Pipe()
        self.process: BaseProcess = CONTEXT.Process(target=take_a_turn, args=(path, theirs), daemon=True)
        self.process.start()
        theirs.close()
        stack.callback(self.process.join)
        stack.callback(self.process.kill)

    @property
    def is_in(self) -> bool:
        return self._orders.poll()

    def wait_until_in(self) -> None:
        assert self._orders.poll(PATIENCE_S), "its turn does not come"
        assert self._orders.recv() == "in"

    def end(self) -> None:
        self._orders.send("end")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The source of a unit."""
    source = tmp_path / "source.py"
    source.touch()
    return source


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_second_waits_until_the_first_is_done(path: Path, stack: ExitStack) -> None:
    first = Taker(path, stack)
    first.wait_until_in()
    second = Taker(path, stack)
    time.sleep(10 * LOOK_S)
    assert not second.is_in
    first.end()
    second.wait_until_in()


def test_one_that_is_killed_lets_the_next_one_in(path: Path, stack: ExitStack) -> None:
    first = Taker(path, stack)
    first.wait_until_in()
    second = Taker(path, stack)
    first.process.kill()
    second.wait_until_in()


def test_nothing_is_left_behind_and_nothing_need_be_writable(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    done: list[int] = []
    try:
        compile_all([Unit(str(path), lambda: done.append(1))])
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    finally:
        path.parent.chmod(0o755)
    assert done == [1]


def test_where_files_cannot_be_locked_nobody_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_fd: Any, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    done: list[int] = []
    unit = Unit(str(path), lambda: done.append(1))
    compile_all([Unit(str(path), lambda: compile_all([unit]))])
    assert done == [1]


def test_what_goes_wrong_in_a_turn_ends_it(path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("of the loop")

    with pytest.raises(RuntimeError, match="of the loop"):
        compile_all([Unit(str(path), fail)])
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
