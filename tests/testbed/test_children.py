"""Child processes of benchmarks and of the demo: all of them are heard, however much they have to say."""

from __future__ import annotations

import errno
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import click
import pytest
from tests.link.signalling import Interrupted, come_in_the_midst_of_a_start, handled

from inagg_testbed.bench import children as family
from inagg_testbed.bench.children import Child, ChildEnded, crew, messages

PATIENCE_S = 60.0


def talk(connection: Connection, count: int) -> None:
    for number in range(count):
        connection.send((None, number))


def compile_much(connection: Connection) -> None:
    """As a process that waits while another compiles says it, many times."""
    from inagg_link import first_start

    for _ in range(20_000):
        first_start._say()
    connection.send((None, "done"))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "/dev/shm has no room: empty it, or give it more (docker run --shm-size 1g)"),
        (errno.EROFS, "/dev/shm is read-only: mount a tmpfs there"),
        (errno.EACCES, "/dev/shm may not be written to: mount a tmpfs there"),
    ],
)
def test_want_of_shared_memory_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(_parties: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(family._spawn, "Barrier", fail)
    with pytest.raises(click.ClickException) as caught:
        family.common_barrier(2)
    assert words in caught.value.message


def test_another_failure_of_a_barrier_is_not_taken_for_one_of_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_parties: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(family._spawn, "Barrier", fail)
    with pytest.raises(OSError, match="Too many open files"):
        family.common_barrier(2)


def test_a_child_that_says_more_than_a_pipe_holds_does_not_stop_the_others() -> None:
    """It did: the demo read rank 0 alone, and a rank that had much to say stood still, for whom rank 0 waited."""
    heard: dict[str, list[Any]] = {"much": [], "little": []}
    with crew() as children:
        children += [Child("little", talk, 1), Child("much", talk, 5000)]
        left = list(children)
        for child, message in messages(left, PATIENCE_S):
            heard[child.name].append(message)
            if len(heard[child.name]) == {"much": 5000, "little": 1}[child.name]:
                left.remove(child)
    assert heard == {"much": list(range(5000)), "little": [0]}


def test_a_child_that_waits_for_what_others_compile_does_not_fill_its_pipe() -> None:
    with crew() as children:
        child = Child("rank 1", compile_much)
        children.append(child)
        deadline_s = time.monotonic() + PATIENCE_S
        while child._process.is_alive() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not child._process.is_alive(), "it waits until somebody reads"
        assert child.receive(1.0) == "done"


def test_a_child_that_fails_is_heard_while_others_work() -> None:
    with crew() as children:
        children += [Child("rank 0", linger), Child("rank 1", fail)]
        heard = messages(list(children), PATIENCE_S)
        with pytest.raises(RuntimeError, match="rank 1 failed"):
            next(heard)
        children.pop(0).kill()


def test_a_child_that_finds_no_memory_is_told_apart_from_one_that_fails() -> None:
    with crew() as children:
        children.append(Child("rank 0", ask_too_much))
        with pytest.raises(MemoryError, match="rank 0: no 977 TiB"):
            children[0].receive(PATIENCE_S)


def ask_too_much(_connection: Connection) -> None:
    raise MemoryError("no 977 TiB")


def test_a_child_that_was_killed_with_a_message_unread_has_ended() -> None:
    with crew() as children:
        children.append(child := Child("rank 0", greet_and_linger))
        child.receive(PATIENCE_S)
        child.send("a message that nobody reads")
        os.kill(child._process.pid or 0, signal.SIGKILL)
        child._process.join()
        ended = r"^rank 0 ended with exit code -9 \(killed: was there too little memory\?\)$"
        with pytest.raises(ChildEnded, match=ended):
            child.receive(PATIENCE_S)
        with pytest.raises(ChildEnded, match=ended):
            child.send("one more")


def test_a_message_to_a_child_that_has_failed_says_why_it_has() -> None:
    with crew() as children:
        children.append(child := Child("rank 0", fail))
        child._process.join()
        with pytest.raises(RuntimeError, match=r"rank 0 failed(?s:.)*ValueError"):
            child.send("go on")


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError])
def test_an_error_like_that_of_a_closed_pipe_is_told(error: type[Exception]) -> None:
    """A data file was cut short, say."""
    with crew() as children:
        children.append(Child("rank 0", break_off, error))
        with pytest.raises(RuntimeError, match=f"rank 0 failed(?s:.)*{error.__name__}: cut short"):
            children[0].receive(PATIENCE_S)


def break_off(_connection: Connection, error: type[Exception]) -> None:
    raise error("cut short")


def greet_and_linger(connection: Connection) -> None:
    connection.send((None, None))
    time.sleep(PATIENCE_S)


def linger(_connection: Connection) -> None:
    time.sleep(PATIENCE_S)


def fail(_connection: Connection) -> None:
    raise ValueError("broken")


def test_a_signal_while_a_child_starts_leaves_none_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], no_process_is_left: None
) -> None:
    come_in_the_midst_of_a_start(monkeypatch)
    with handled(), pytest.raises(Interrupted):
        Child("rank 0", linger)
    assert capfd.readouterr().err == ""


def test_a_child_does_not_hear_ctrl_c_and_what_it_starts_can_be_told_to_hear_it() -> None:
    with crew() as children:
        children.append(Child("rank 0", tell_of_ctrl_c))
        assert children[0]._process.pid is not None
        os.kill(children[0]._process.pid, signal.SIGINT)  # it may not have begun to run
        assert children[0].receive(PATIENCE_S) == (signal.SIG_IGN, set())


def tell_of_ctrl_c(connection: Connection) -> None:
    connection.send((None, (signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, []))))


def test_silence_is_an_error() -> None:
    with crew() as children:
        children.append(Child("rank 0", linger))
        with pytest.raises(TimeoutError, match="rank 0 said nothing"):
            next(messages(list(children), 0.1))
        children.pop().kill()
