"""What the interpreter's end waits for, and in which order; and not where it has no threads: in a forked process."""

from __future__ import annotations

import subprocess
import sys

FORKS = """
import os, sys, threading, time
from inagg_host.io import exit_hooks
from inagg_host.io.futures import CallbackExecutor
from inagg_host.io.serial_executor import SerialExecutor

executor, turn, forked = CallbackExecutor(), SerialExecutor("in-turn"), threading.Event()
executor.submit(lambda: None)
turn.submit(int).result()

def hold():
    with executor._news, turn._lock:
        held.set()
        forked.wait()

held = threading.Event()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    for one in (executor, turn):
        try:
            one.submit(int)
        except RuntimeError as error:
            print(error, flush=True)
        assert one.shutdown()
    sys.exit(0)
began_s = time.monotonic()
assert os.waitpid(child, 0)[1] == 0
forked.set()
assert time.monotonic() - began_s < exit_hooks.LAST_S
turn.submit(print, "the parent goes on").result()
"""


def test_a_forked_process_ends_at_once_and_takes_nothing_on() -> None:
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "it is closed\nit is closed\nthe parent goes on\n"), run.stderr


ENDS = """
import atexit, threading, time
from inagg_host.io.futures import CallbackExecutor
from inagg_host.io.serial_executor import SerialExecutor

executor, turn, left = CallbackExecutor(), SerialExecutor("in-turn"), threading.Event()

def call():
    left.wait()
    time.sleep(0.2)
    executor.submit(lambda: print("it was called back", flush=True))

turn.submit(call)
atexit.register(left.set)  # as a job is left
"""


def test_callbacks_of_what_still_runs_at_the_end_are_called() -> None:
    run = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "it was called back\n"), run.stderr
