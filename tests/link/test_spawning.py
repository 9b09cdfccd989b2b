"""Processes that are started whole or not at all, and do not hear what is for their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from tests.link.signalling import Interrupted, come_in_the_midst_of_a_start, handled

from inagg_link.spawning import start_deaf

CONTEXT = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0


def report(pipe: Connection) -> None:
    """In a process of its own: say which signals are blocked, when told to."""
    pipe.recv()
    pipe.send(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def new_process() -> tuple[Connection, BaseProcess]:
    ours, theirs = CONTEXT.Pipe()
    return ours, CONTEXT.Process(target=report, args=(theirs,), daemon=True)


@pytest.mark.parametrize("which", [1, 2])
def test_a_signal_in_the_midst_of_a_start_leaves_no_process_and_no_traceback(
    which: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[Connection, BaseProcess]] = []

    def start_both() -> None:
        for _ in range(2):
            started.append(new_process())
            start_deaf(started[-1][1], [])

    come_in_the_midst_of_a_start(monkeypatch, which)
    with handled(), pytest.raises(Interrupted):
        start_both()
    assert len(started) == which
    assert started.pop()[1].exitcode == -signal.SIGKILL
    for _, process in started:
        process.kill()
        process.join()
    assert capfd.readouterr().err == ""


def test_a_process_does_not_hear_the_signals_that_its_parent_acts_on_and_the_parent_does() -> None:
    pipe, process = new_process()
    start_deaf(process, [signal.SIGINT, signal.SIGHUP])
    assert not {signal.SIGINT, signal.SIGHUP} & signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)  # it may not have begun to run
    pipe.send("say it")
    assert pipe.poll(PATIENCE_S)
    assert {signal.SIGINT, signal.SIGHUP} <= pipe.recv()
    process.join()
    assert process.exitcode == 0
