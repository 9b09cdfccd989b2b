"""Jobs that nobody needs any more are left before the interpreter ends, and with them what they held of PyTorch."""

from __future__ import annotations

import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

from inagg_host.torch import finalizers

SCRIPT = """
import time
from functools import partial

import torch.distributed as dist
from inagg_host.torch import finalizers


def close(group):
    time.sleep(0.3)
    print("left", flush=True)


finalizers.start()
group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)  # its destructor lets go of Python's lock, and takes it again
finalizers.submit(partial(close, group))
del group
"""


def test_a_script_that_ends_waits_for_the_job_that_is_being_left() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_who_got_no_thread_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(finalizers, "_process", 0)
    monkeypatch.setattr(finalizers, "_thread", None)
    monkeypatch.setattr(finalizers, "_left", SimpleQueue())  # not that of a thread that there is
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            finalizers.start()
    left = threading.Event()
    finalizers.start()
    finalizers.submit(left.set)
    assert left.wait(30.0)
    finalizers.submit(None)  # type: ignore[arg-type]  # the thread's end
