"""Processes that need the same loops: one compiles them, the others wait for it."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import multiprocessing
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from inagg_wire import compiled

CONTEXT = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0


def module_at(path: Path) -> Any:
    """`inagg_wire.compiled` from a copy, which other processes on this machine do not lock."""
    spec = importlib.util.spec_from_file_location("compiled_copy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take_a_turn(path: Path, orders: Connection) -> None:
    """In a process of its own: say when its turn has come, and end it when told to."""
    with module_at(path).one_at_a_time():
        orders.send("in")
        orders.recv()


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

    def wait_until_it_waits(self) -> None:
        """The kernel lists who waits for a lock: `-> FLOCK ADVISORY WRITE pid ...`."""
        give_up_at = time.monotonic() + PATIENCE_S
        while ["FLOCK", str(self.process.pid)] not in [
            [words[2], words[5]]
            for line in Path("/proc/locks").read_text().splitlines()
            if "->" in (words := line.split())
        ]:
            assert time.monotonic() < give_up_at, "it does not wait"
            time.sleep(0.01)

    def end(self) -> None:
        self._orders.send("end")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The copy."""
    return Path(shutil.copy(compiled.__file__, tmp_path))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_second_waits_until_the_first_is_done(path: Path, stack: ExitStack) -> None:
    first = Taker(path, stack)
    first.wait_until_in()
    second = Taker(path, stack)
    second.wait_until_it_waits()
    assert not second.is_in
    first.end()
    second.wait_until_in()


def test_one_that_is_killed_lets_the_next_one_in(path: Path, stack: ExitStack) -> None:
    first = Taker(path, stack)
    first.wait_until_in()
    second = Taker(path, stack)
    second.wait_until_it_waits()
    first.process.kill()
    second.wait_until_in()


def test_nothing_is_left_behind_and_nothing_need_be_writable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with module_at(path).one_at_a_time():
            assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    finally:
        path.parent.chmod(0o755)


def test_where_files_cannot_be_locked_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_fd: Any, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with compiled.one_at_a_time(), compiled.one_at_a_time():
        entered = True
    assert entered


def test_what_goes_wrong_in_a_turn_ends_it(path: Path) -> None:
    module = module_at(path)
    with pytest.raises(RuntimeError, match="of the loop"), module.one_at_a_time():
        raise RuntimeError("of the loop")
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
