"""Real processes: a switch as its users start it, its commands, and workers in threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tests.switch.service.member_client import MemberClient

from inagg_host.allreduce import AllReduce
from inagg_switch.service.control_client import ControlClient

INAGG = (sys.executable, "-m", "inagg")
START_S = 180.0
"""The first switch and the first worker on a machine compile their kernels."""

Array = npt.NDArray[Any]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would tell a switch or a command something else than the test does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INAGG_")}
    return {**kept, "COLUMNS": "80", **more}


def inagg(*arguments: str, timeout_s: float = 30, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. ``more``: variables of its environment."""
    return subprocess.run(
        [*INAGG, *arguments], capture_output=True, text=True, timeout=timeout_s, env=environment(**more), check=False
    )


def until(condition: Callable[[], object], timeout_s: float = START_S, what: str = "it") -> None:
    """Wait until something is so."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, f"{what} did not come about within {timeout_s} s"
        time.sleep(0.01)


class Switch:
    """`inagg switch` on free ports. A context manager that waits until it serves, and kills what is left of it."""

    def __init__(self, folder: Path, *options: str, pass_fds: Sequence[int] = (), **more: str) -> None:
        """``more``: variables of its environment."""
        folder.mkdir(exist_ok=True)
        self.ready_file, self.log_file, self.out_file = (folder / name for name in ("ready.json", "log", "out"))
        command = [*INAGG, "switch", "--listen", "127.0.0.1:0", "--ready-file", str(self.ready_file)]
        with open(self.log_file, "wb") as log, open(self.out_file, "wb") as out:
            self.process = subprocess.Popen(
                [*command, "--log-format", "json", *options],
                stdout=out,
                stderr=log,
                env=environment(**more),
                start_new_session=True,
                pass_fds=pass_fds,
            )
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> None:
        """Wait until it serves. AssertionError with its log if it does not."""
        until(lambda: self.ready_file.exists() or self.process.poll() is not None, START_S, "the switch")
        assert self.process.poll() is None, self.log_file.read_text()
        self.ready = json.loads(self.ready_file.read_text())

    @property
    def address(self) -> str:
        """Of the control service."""
        return str(self.ready["control"])

    @property
    def shard_pids(self) -> list[int]:
        """The processes of the data planes."""
        return [shard["pid"] for shard in self.ready["shards"]]

    def log(self) -> list[dict[str, Any]]:
        """What it has logged: every line is JSON."""
        whole = self.log_file.read_text().rpartition("\n")[0]  # it may be writing the last one
        return [json.loads(line) for line in whole.splitlines()]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name in its log."""
        return [event for event in self.log() if event["event"] == name]

    def client(self) -> MemberClient:
        """To ask it; to be closed."""
        return MemberClient(self.address)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the commands that ask a switch."""
        return inagg(*arguments, INAGG_SWITCH=self.address)

    def signal(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to it and its shards at once, as a terminal and a service manager do; SIGKILL to it alone."""
        if number is signal.SIGKILL:
            self.process.kill()
        else:
            os.killpg(self.process.pid, number)

    def ended(self, timeout_s: float = 10) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait(timeout_s)

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def __exit__(self, *exception: object) -> None:
        self.close()


class Rank(threading.Thread):
    """One worker in a thread: joins, sums its arrays one after the other, leaves."""

    def __init__(self, arrays: Iterable[Array], **options: Any) -> None:
        super().__init__(daemon=True)
        self._arrays, self._options = arrays, options
        self.sums: list[Array] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with AllReduce(**self._options) as all_reduce:
                for array in self._arrays:
                    self.sums.append(all_reduce(array.copy()))
        except BaseException as error:
            self.error = error

    def result(self, timeout_s: float = START_S) -> list[Array]:
        """Its sums. Raises what went wrong."""
        self.join(timeout_s)
        assert not self.is_alive(), f"rank {self._options['rank']} of {self._options['job']} still works"
        if self.error is not None:
            raise self.error
        return self.sums


class Run:
    """A job whose ranks are threads: `results` has the sums by rank."""

    def __init__(self, address: str, arrays: Sequence[Iterable[Array]], **options: Any) -> None:
        self.ranks = [
            Rank(mine, switch=address, rank=rank, workers=len(arrays), **options) for rank, mine in enumerate(arrays)
        ]

    def results(self, timeout_s: float = START_S) -> list[list[Array]]:
        """Wait for all; the sums by rank, all of which have the same."""
        results = [rank.result(timeout_s) for rank in self.ranks]
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
        return results


def held_back(arrays: Sequence[Array], over: threading.Event) -> Iterator[Array]:
    """All of them, the last one when ``over`` is set: a job of which a rank has these is not over before."""
    yield from arrays[:-1]
    assert over.wait(START_S)
    yield arrays[-1]


def gradients(workers: int, sizes: Sequence[int], seed: int) -> list[list[Array]]:
    """Arrays by rank: normal, with some zeros, of the sizes given."""
    generator = np.random.default_rng(seed)
    return [
        [generator.normal(size=size).astype(np.float32) * (generator.random(size) > 0.1) for size in sizes]
        for _ in range(workers)
    ]


WORKER = Path(__file__).with_name("worker.py")


@contextmanager
def worker(address: str, job: str, ranks: Sequence[int], workers: int, **options: object) -> Iterator[Worker]:
    """A process that is some ranks of a job and sums without end."""
    arguments = [sys.executable, str(WORKER), address, job, json.dumps(list(ranks)), str(workers), json.dumps(options)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    found = Worker(process)
    try:
        yield found
    finally:
        found.kill()
        process.communicate()


class Worker:
    """A worker process that can be made to vanish."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def has_summed(self) -> bool:
        """Wait until its ranks have summed something."""
        assert self._process.stdout is not None
        return bool(self._process.stdout.readline())

    def kill(self) -> None:
        """It vanishes: no farewell."""
        self._process.kill()
        self._process.wait()


def slots_leased(client: ControlClient) -> int:
    """On the first shard."""
    return client.stats().shards[0].slots_leased


def wait_for_slots(client: ControlClient, slots: int, timeout_s: float = START_S) -> None:
    """Wait until so many are leased."""
    until(partial(lambda: slots_leased(client) == slots), timeout_s, f"{slots} slots leased")
