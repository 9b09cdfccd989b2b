"""How tensors beside the training stream end that have no sums; no device waits for ever. On the CPU as a device."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.host.io.test_interpreter import comes
from tests.host.torch.cpu_platform import CpuPlatform, either_way
from tests.host.torch.ranks import LARGE, equal
from tests.host.torch.world import World

from inagg_host.allreduce import AllReduceError
from inagg_host.codec.launches import NAMES
from inagg_host.codec.ordered import store_word
from inagg_host.codec.staging import Arriving
from inagg_host.io.watchdog import Watchdog
from inagg_host.torch import TensorAllReduce, cuda
from inagg_host.torch.gpu.device import WORDS_AT_ONCE, TensorDevice


def fail_through_stage(name: str, copied_bytes: int) -> str:
    """What comes of a tensor that is on its way when all is closed."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    all_reduce = TensorAllReduce(rank=rank, workers=workers, job=name)
    all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
    dist.barrier()
    told = ""
    if rank == 0:
        work = all_reduce.submit(torch.ones(LARGE))
        threading.Timer(0.2, all_reduce.close).start()
        try:
            work.wait()
        except AllReduceError as error:
            told = str(error)
    dist.barrier()
    all_reduce.close()
    return told


@either_way
def test_what_is_on_its_way_through_the_stage_fails_when_it_is_closed(two: World, copied_bytes: int) -> None:
    told = two.run(fail_through_stage, f"closed-{copied_bytes}-{os.getpid()}", copied_bytes)
    assert told[0] == "closed before the sums were there"


def fail_to_launch(name: str, function: str, copied_bytes: int) -> str:
    """What comes of a tensor of which one rank cannot launch all, once a sum was there."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    platform = CpuPlatform(torch.device("cpu"), copied_bytes=copied_bytes)
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        all_reduce._platforms = {"cpu": lambda device: platform}
        all_reduce(torch.ones(LARGE))
        platform.refused = function if rank == 0 else None
        try:
            all_reduce(torch.ones(LARGE))
        except AllReduceError as error:
            return str(error)
    return ""


WAIT, WRITE, LAUNCH, COPY = NAMES


@pytest.mark.parametrize(
    ("function", "copied_bytes"), [(WAIT, 0), (WRITE, 0), (LAUNCH, 0), (WRITE, 1 << 30), (COPY, 1 << 30)]
)
def test_what_the_driver_refuses_is_told_to_all_ranks(two: World, function: str, copied_bytes: int) -> None:
    of_0, of_1 = two.run(fail_to_launch, f"{function}-{copied_bytes}-{os.getpid()}", function, copied_bytes)
    assert of_0 == f"the device of a tensor failed: {function}: 1"
    assert of_0 in of_1


def test_a_rank_whose_device_does_not_bring_sums_that_have_come_is_told(two: World) -> None:
    told, _ = two.run(fail_to_launch, f"not-brought-{os.getpid()}", WAIT, 1 << 30)
    assert WAIT in told


def interrupt_launch(name: str) -> tuple[str, str]:
    """What comes of a tensor where one rank is interrupted when it has launched all, and of the next one."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    launch = TensorDevice.launch

    def interrupted(*arguments: Any) -> None:
        launch(*arguments)
        raise KeyboardInterrupt

    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        all_reduce._platforms = {"cpu": CpuPlatform}
        all_reduce(torch.ones(LARGE))
        first = next_ = ""
        try:
            with patch.object(TensorDevice, "launch", interrupted if rank == 0 else launch):
                all_reduce(torch.ones(LARGE))
        except (AllReduceError, KeyboardInterrupt) as error:
            first = repr(error)
        try:
            all_reduce(torch.ones(LARGE))
        except AllReduceError as error:
            next_ = str(error)
    return first, next_


def test_who_is_interrupted_where_it_launches_ends_the_job(two: World) -> None:
    """So nothing of the device waits for ever, and nobody gets sums of other tensors."""
    (first, next_), (other, _) = two.run(interrupt_launch, f"interrupted-{os.getpid()}")
    assert first == "KeyboardInterrupt()"
    assert "the device of a tensor failed" in next_
    assert "the device of a tensor failed" in other


def fill_queues(name: str, instead: str, copied_bytes: int) -> tuple[float, str]:
    """What comes of a tensor, or of several that are copied, for which the queues of the device have no room, if the
    other rank sums them, or ends the job ``instead``, or another thread leaves it."""
    rank, workers, values = dist.get_rank(), dist.get_world_size(), torch.ones(1 << 20)
    parts = values.view(8 if copied_bytes else 1, -1)
    with TensorAllReduce(rank=rank, workers=workers, job=name, lanes=1448) as all_reduce:
        all_reduce._platforms = {"cpu": lambda device: CpuPlatform(device, room=4, copied_bytes=copied_bytes)}
        all_reduce(torch.ones(LARGE))
        dist.barrier()
        if instead and rank == 1:
            if instead == "end":
                time.sleep(0.3)
                all_reduce.close("enough", end=True)
            dist.barrier()
            return 0.0, ""
        if instead == "leave":
            threading.Timer(0.3, all_reduce.close).start()
        try:
            for work in [all_reduce.submit(part) for part in parts]:
                work.wait()
            told = ""
        except AllReduceError as error:
            told = str(error)
        if instead:
            dist.barrier()
        return float(values.min()), told


@either_way
def test_a_tensor_for_which_queues_have_no_room_is_summed(two: World, copied_bytes: int) -> None:
    assert equal(two.run(fill_queues, f"full-{copied_bytes}-{os.getpid()}", "", copied_bytes)) == (2.0, "")


@either_way
@pytest.mark.parametrize(("instead", "said"), [("end", "rank 1 ended job"), ("leave", "closed")])
def test_a_tensor_for_which_queues_have_no_room_fails_with_its_job(
    two: World, instead: str, said: str, copied_bytes: int
) -> None:
    (_, told), _ = two.run(fill_queues, f"full-{instead}-{copied_bytes}-{os.getpid()}", instead, copied_bytes)
    assert said in told


def fail_before_all_is_launched(name: str) -> str:
    """What comes of a tensor whose job ends while it is launched, and whose callbacks are called late."""
    ended, may_call, rank = threading.Event(), threading.Event(), dist.get_rank()
    call_all, copy = Future._invoke_callbacks, TensorDevice.copy_from_host  # type: ignore[attr-defined]

    def late(future: Future[Any]) -> None:
        if threading.current_thread() is not threading.main_thread() and not may_call.is_set():
            ended.set()
            may_call.wait(10.0)
        call_all(future)

    def copy_at_the_end(*arguments: Any) -> None:
        threading.Thread(target=all_reduce.close).start()
        assert ended.wait(10.0)
        threading.Timer(0.5, may_call.set).start()
        copy(*arguments)

    with TensorAllReduce(rank=rank, workers=dist.get_world_size(), job=name) as all_reduce:
        all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=1 << 30)}
        all_reduce(torch.ones(8))
        dist.barrier()
        told = ""
        if rank == 0:
            with (
                patch.object(Future, "_invoke_callbacks", late),
                patch.object(TensorDevice, "copy_from_host", copy_at_the_end),
                pytest.raises(AllReduceError) as raised,
            ):
                all_reduce.submit(torch.ones(8)).wait()
            told = str(raised.value)
        dist.barrier()
    return told


def test_a_device_does_not_wait_for_a_tensor_whose_job_ended_while_it_was_launched(two: World) -> None:
    told, _ = two.run(fail_before_all_is_launched, f"before-{os.getpid()}")
    assert told == "closed before the sums were there"


def keep_what_a_device_waits_on(name: str, early: bool) -> tuple[bool, int, bool, int, float]:
    """Whether what a device waits on is kept until it has passed that, though all sums are there, and how many words
    have not been given back; whether it is gone then, and how many; the sums. ``early``: they are there before all is
    launched."""
    made = list[weakref.ref[Arriving]]()

    def make(*arguments: Any) -> Arriving:
        arriving = Arriving(*arguments)
        made.append(weakref.ref(arriving))
        return arriving

    with (
        patch.object(cuda, "Arriving", make),
        TensorAllReduce(rank=dist.get_rank(), workers=dist.get_world_size(), job=name) as all_reduce,
    ):
        all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=1000)}
        values, released, summed = torch.ones(250), threading.Event(), threading.Event()
        device = all_reduce.stage(values.device).device
        device.decode_stream.do(released.wait)  # it is late
        finish = Arriving.finish

        def finished(arriving: Arriving) -> None:
            finish(arriving)
            summed.set()

        def runs_without_python() -> bool:
            if early:
                assert summed.wait(10.0)
                time.sleep(0.05)
            return True

        with (
            patch.object(Arriving, "finish", finished),
            patch.object(all_reduce.arrays, "runs_without_python", runs_without_python),
        ):
            work = all_reduce.submit(values)
            assert summed.wait(10.0)
        time.sleep(0.05)
        gc.collect()
        kept, used = made[0]() is not None, WORDS_AT_ONCE - len(device._idle_words)
        released.set()
        work.wait()
        give_up_s = time.monotonic() + 5.0
        while made[0]() is not None and time.monotonic() < give_up_s:
            time.sleep(0.001)
        return kept, used, made[0]() is None, WORDS_AT_ONCE - len(device._idle_words), float(values.min())


@pytest.mark.parametrize("early", [False, True])
def test_what_a_device_waits_on_is_kept_until_it_has_passed_it(two: World, early: bool) -> None:
    """And who submits does not wait for that."""
    assert equal(two.run(keep_what_a_device_waits_on, f"kept-{early}-{os.getpid()}", early)) == (True, 1, True, 0, 2.0)


def wait_in_vain(name: str, lowered: bool) -> tuple[bool, bool, str]:
    """Of rank 0: whether a device is told of sums for which the other rank never submits, though the interpreter's lock
    is kept until then; whether they are NaN; what waiting for them raises. ``lowered``: the limit was."""
    found, told = (True, True, ""), np.zeros(1, np.int64)
    store_word(told.ctypes.data, 1)
    comes(told.ctypes.data)  # compiles
    made = list[Arriving]()

    def make(*arguments: Any) -> Arriving:
        made.append(Arriving(*arguments))
        return made[0]

    with (
        patch.object(cuda, "Arriving", make),
        patch.object(cuda, "Watchdog", lambda limit_s: Watchdog(limit_s, 0.1)),
        TensorAllReduce(rank=dist.get_rank(), workers=2, job=name, timeout_s=1e6 if lowered else 0.3) as all_reduce,
    ):
        if dist.get_rank() == 0:
            all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=1000)}
            if lowered:
                all_reduce.stage(torch.device("cpu"))
                all_reduce.set_timeout(timedelta(seconds=0.3))
            values = torch.ones(250)
            work = all_reduce.submit(values)
            came = comes(made[0].summed)
            with pytest.raises(AllReduceError) as caught:
                work.wait()
            found = came, bool(values.isnan().all()), str(caught.value)
        dist.barrier()
    return found


@pytest.mark.parametrize("lowered", [False, True], ids=["from the beginning", "set later"])
def test_a_device_that_waits_in_vain_goes_on_after_the_time_limit_though_nobody_can_run_python(
    two: World, lowered: bool
) -> None:
    (came, is_nan, why), _ = two.run(wait_in_vain, f"vain-{lowered}-{os.getpid()}", lowered)
    assert (came, is_nan) == (True, True)
    assert "no result within 0.3 s" in why
