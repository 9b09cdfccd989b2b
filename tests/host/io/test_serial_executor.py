"""A thread that calls what it is given, one after the other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from inagg_host.io.serial_executor import SerialExecutor, shutdown_all

from .rig import no_threads

PATIENCE_S = 20.0


def test_calls_come_in_their_order_and_all_before_the_end() -> None:
    turn, called = SerialExecutor("in-turn"), list[int]()
    works = [turn.submit(called.append, number) for number in range(100)]
    turn.shutdown()
    turn.shutdown()
    assert called == list(range(100))
    assert all(work.done() for work in works)
    assert not any(thread.name == "in-turn" for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="closed"):
        turn.submit(called.append, 100)


def test_what_is_raised_belongs_to_who_waits_for_it() -> None:
    turn = SerialExecutor("in-turn")
    with pytest.raises(ZeroDivisionError):
        turn.submit(lambda: 1 // 0).result()
    assert turn.submit(lambda: 1).result() == 1
    turn.shutdown()


def test_who_got_no_thread_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = SerialExecutor("in-turn")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_threads)
        with pytest.raises(RuntimeError, match="new thread"):
            turn.submit(int)
    assert turn.submit(int).result(PATIENCE_S) == 0
    turn.shutdown()


def test_what_was_called_is_not_kept() -> None:
    turn, thing = SerialExecutor("in-turn"), np.zeros(1)
    kept = weakref.ref(thing)
    turn.submit(id, thing).result()
    del thing
    give_up_s = time.monotonic() + PATIENCE_S
    while kept() is not None and time.monotonic() < give_up_s:
        time.sleep(0.005)
    assert kept() is None
    turn.shutdown()


def test_all_are_shut_down_within_one_limit() -> None:
    turns, gate = [SerialExecutor(f"in-turn-{number}") for number in range(30)], threading.Event()
    works = [turn.submit(gate.wait, PATIENCE_S) for turn in turns]
    began_s = time.monotonic()
    assert not shutdown_all(turns, 0.2)
    assert 0.2 <= time.monotonic() - began_s < 30 * 0.2
    for turn in turns:
        with pytest.raises(RuntimeError, match="closed"):
            turn.submit(int)
    gate.set()
    assert shutdown_all(turns, PATIENCE_S)
    assert all(work.done() for work in works)


WAITS = """
import atexit, threading
from inagg_host.io.serial_executor import SerialExecutor
turn, left = SerialExecutor("in-turn"), threading.Event()
turn.submit(left.wait).add_done_callback(lambda done: print("it has gone on", flush=True))
atexit.register(left.set)  # as a job is left
raise KeyError("the script fails")
"""


def test_a_script_that_fails_waits_for_what_is_called_after_it_has_left_its_jobs() -> None:
    run = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "the script fails" in run.stderr
    assert run.stdout == "it has gone on\n"
