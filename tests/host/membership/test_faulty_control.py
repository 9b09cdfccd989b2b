"""What goes wrong on the control channel changes no sum, and leaves nobody waiting: calls and events that are late, are
lost, or break off, a switch that is started again, a job that somebody ends meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from inagg_host.allreduce import AllReduce
from inagg_host.errors import AllReduceError
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc

from .faulty_control import CALM, PATIENCE_S, Faults, FaultyControl, RealSwitch

FAULTS = Faults(late=0.3, late_s=0.5, refused=0.15, lost=0.15, broken_s=1.0)
FAULTY_S = 1.0
SIZES = (1, 700, 3_000)
AFTER = 3
"""Rounds of sums when nothing goes wrong any more."""
WORKERS = 3


@pytest.fixture(scope="module")
def switch() -> Iterator[RealSwitch]:
    switch = RealSwitch()
    yield switch
    switch.stop()


def wait_for(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def array(rank: int, number: int, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a rank adds to a sum."""
    return np.full(size, (rank + 1) * (number % 7 + 1), np.float32)


class Job:
    """Ranks on threads, which sum together until nothing has gone wrong for `AFTER` rounds, or there is an error."""

    def __init__(self, switch: RealSwitch, control: FaultyControl, name: str) -> None:
        self._switch, self._control = switch, control
        self._options: dict[str, Any] = {
            "switch": control.address, "workers": WORKERS, "job": name, "format": "fix32", "lanes": 64, "window": 16,
            "heartbeat_limit_s": 4.0, "rejoin_limit_s": 20.0,
        }  # fmt: skip
        self._lock = threading.Lock()
        self._rounds: int | None = None
        self.sums: list[list[list[bytes]]] = [[] for _ in range(WORKERS)]
        """Those that each rank has, of each round."""
        self.ends: int | None = None
        """The rank that ends the job, when something has been summed."""
        self._ended = threading.Event()
        self.begun = threading.Event()
        """Whether something has been summed."""

    def run(self, act: Callable[[], None] = lambda: None) -> list[str]:
        """The errors of the ranks. ``act`` is called meanwhile."""

        def calm() -> None:
            if self._control.faults is not CALM:
                time.sleep(FAULTY_S)
                assert self.ends is None or self._ended.wait(PATIENCE_S)
                self._control.faults = CALM

        with ThreadPoolExecutor(WORKERS + 2) as pool:
            others = [pool.submit(calm), pool.submit(act)]
            ranks = [pool.submit(self._rank, rank) for rank in range(WORKERS)]
            errors = [error for rank in ranks if (error := rank.result()) is not None]
            for other in others:
                other.result()
        return errors

    def _again(self, number: int) -> bool:
        """Whether there is a round of that number. All ranks are told the same."""
        with self._lock:
            if self._rounds is None and self._control.faults is CALM:
                self._rounds = number + AFTER
            return self._rounds is None or number < self._rounds

    def _rank(self, rank: int) -> str | None:
        """The life of a rank. Its error, if it ends with one."""
        number = 0
        try:
            with AllReduce(rank=rank, **self._options) as all_reduce:
                while self._again(number):
                    arrays = [array(rank, number, size) for size in SIZES]
                    for work in [all_reduce.submit(values) for values in arrays]:
                        work.result(2 * PATIENCE_S)
                    self.sums[rank].append([values.tobytes() for values in arrays])
                    number += 1
                    self.begun.set()
                    if rank == self.ends:
                        all_reduce.close("for a test", end=True)
                        self._ended.set()
                        return None
        except AllReduceError as error:
            return str(error)
        return None

    def check_sums(self) -> None:
        """What was summed is right, and the same on all ranks."""
        for sums in self.sums:
            for number, told in enumerate(sums):
                right = [sum(array(rank, number, size) for rank in range(WORKERS)) for size in SIZES]
                assert told == [np.asarray(values, np.float32).tobytes() for values in right]

    def evict(self) -> None:
        """An operator ends the job, when something has been summed."""
        assert self.begun.wait(PATIENCE_S)
        with grpc.insecure_channel(self._switch.address) as channel:
            request = pb.EvictRequest(name=self._options["job"], reason="for a test")
            control_pb2_grpc.ControlStub(channel).Evict(request, timeout=PATIENCE_S)

    def is_left(self) -> bool:
        """Whether the switch has a job."""
        with grpc.insecure_channel(self._switch.address) as channel:
            return bool(control_pb2_grpc.ControlStub(channel).List(pb.ListRequest(), timeout=PATIENCE_S).jobs)


@pytest.fixture
def before() -> Iterator[None]:
    """No threads are there afterwards of whose kind there were none before."""

    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("inagg")}

    names_before = names()
    yield
    wait_for(lambda: names() <= names_before)


@pytest.mark.parametrize(("seed", "restarts"), [(47, False), (75, False), (69, True)])
@pytest.mark.usefixtures("before")
def test_sums_go_on(switch: RealSwitch, seed: int, restarts: bool) -> None:
    with FaultyControl(switch.address, FAULTS, seed) as control:
        job = Job(switch, control, f"on-{seed}")

        def restart() -> None:
            assert job.begun.wait(PATIENCE_S)
            switch.restart()

        errors = job.run(restart if restarts else lambda: None)
        assert errors == [], "\n".join(control.told)
        job.check_sums()
        assert {len(sums) for sums in job.sums} == {len(job.sums[0])}
        wait_for(lambda: not job.is_left())


@pytest.mark.parametrize(("seed", "operator"), [(56, False), (47, True)])
@pytest.mark.usefixtures("before")
def test_all_hear_that_the_job_is_ended_and_can_begin_it_anew(switch: RealSwitch, seed: int, operator: bool) -> None:
    with FaultyControl(switch.address, FAULTS, seed) as control:
        job = Job(switch, control, f"ended-{seed}")
        if operator:
            errors = job.run(job.evict)
        else:
            job.ends = 0
            errors = job.run()
        assert len(errors) == (WORKERS if operator else WORKERS - 1), "\n".join(control.told)
        assert all(error.endswith(": for a test") for error in errors), errors
        job.check_sums()
        again = Job(switch, control, f"ended-{seed}")
        assert again.run() == []
        again.check_sums()
        wait_for(lambda: not again.is_left())
