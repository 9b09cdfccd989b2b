"""A process that may have no more threads, or no more files: its rank says so and ends, and waits for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from inagg_host.allreduce import AllReduce
from inagg_host.membership.session import Session
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

PATIENCE_S = 60.0
THREADS = 12
"""More than a rank starts."""

FEW_THREADS = """
import json, sys, threading
from inagg_host.allreduce import AllReduce, AllReduceError

start, left, said = threading.Thread.start, 0, []

def limited(thread):
    global left
    if left == 0:
        raise RuntimeError("can't start new thread")
    left -= 1
    start(thread)

for most in range(int(sys.argv[2])):
    left, threading.Thread.start = most, limited
    try:
        with AllReduce(switch=sys.argv[1], rank=0, workers=1, job=f"few-{most}"):
            threading.Thread.start = start
        said.append("")
    except AllReduceError as error:
        said.append(str(error))
    threading.Thread.start = start
print(json.dumps(said))
"""

FEW_FILES = """
import os, resource, sys
from inagg_host.allreduce import AllReduce, AllReduceError

def limited(link):
    opened = len(os.listdir("/proc/self/fd")) - 1  # without the folder's own
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return link

try:
    AllReduce(switch=sys.argv[1], rank=0, workers=1, job="few-files", wrap_link=limited)
except AllReduceError as error:
    print(error)
"""
"""From when its socket is open on: before, gRPC would end the process."""


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


def rank(script: str, *arguments: str) -> str:
    """What a process prints that ends by itself."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_whichever_thread_it_cannot_have_a_rank_says_so_and_ends(switch: SwitchProcess) -> None:
    said: list[str] = json.loads(rank(FEW_THREADS, switch.control, str(THREADS)))
    failed = [text for text in said if text]
    assert len(failed) > 4, "with so few threads nothing works"
    assert said[-1] == "", "with so many it does"
    assert set(failed) == {"can't start new thread: raise the limit of processes (ulimit -u, TasksMax=, a pod's pids)"}


def test_a_rank_that_could_not_listen_hears_the_switch_when_there_are_threads_again(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused, hears = threading.Thread.start, threading.Event(), Session._hear

    def refuse_once(thread: threading.Thread) -> None:
        if threading.current_thread().name == "inagg_listen" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    heard = threading.Event()

    def hear(session: Session, event: Any) -> None:
        hears(session, event)
        heard.set()

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    monkeypatch.setattr(Session, "_hear", hear)
    with caplog.at_level("WARNING", "inagg"), AllReduce(switch=switch.control, rank=0, workers=1, job="deaf"):
        assert refused.wait(PATIENCE_S)
        assert heard.wait(PATIENCE_S)
    assert "cannot listen to the switch: can't start new thread: raise the limit" in caplog.text


def test_a_rank_that_may_have_no_more_files_names_the_limit(switch: SwitchProcess) -> None:
    said = rank(FEW_FILES, switch.control)
    assert "Too many open files" in said
    assert "raise the limit of open files (ulimit -n, LimitNOFILE=)" in said
