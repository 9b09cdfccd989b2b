"""What a device brings, if something is raised meanwhile: who is told, and what is kept; on the CPU as a device."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.host.torch.cpu_platform import CpuPlatform, HostStream, either_way
from tests.host.torch.ranks import LARGE, equal
from tests.host.torch.world import World

from inagg_host.allreduce import AllReduceError
from inagg_host.torch import TensorAllReduce, cuda
from inagg_host.torch.gpu.device import Operand, TensorDevice

LIMIT_S = 20.0
CPU = torch.device("cpu")


def join(name: str, copied_bytes: int = 0) -> TensorAllReduce:
    """A job whose first sums have come through the stage."""
    all_reduce = TensorAllReduce(rank=dist.get_rank(), workers=2, job=f"{name}-{os.getppid()}", timeout_s=LIMIT_S)
    all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
    all_reduce(torch.ones(LARGE))
    dist.barrier()
    return all_reduce


def break_the_device(copied_bytes: int) -> tuple[bool, str]:
    """Whether a rank hears in time, and what, if rank 0's device breaks when all has been launched."""
    with join(f"break-{copied_bytes}", copied_bytes) as all_reduce:
        if dist.get_rank() == 0:
            device = all_reduce.stage(CPU).device
            error = RuntimeError("CUDA error: device-side assert triggered\nSearch for it")

            def breaks() -> None:
                time.sleep(0.2)
                for stream in device.streams:
                    assert isinstance(stream, HostStream)
                    stream.error = error

            device.scan_stream.do(breaks)
        began_s = time.monotonic()
        with pytest.raises(AllReduceError) as caught:
            all_reduce.submit(torch.ones(LARGE)).result()
        return time.monotonic() - began_s < LIMIT_S / 2, str(caught.value)


@either_way
def test_all_ranks_hear_of_a_device_that_breaks_after_all_was_launched(two: World, copied_bytes: int) -> None:
    for in_time, why in two.run(break_the_device, copied_bytes):
        assert in_time
        assert why.endswith("the device of a tensor failed: CUDA error: device-side assert triggered") or (
            why == "the device of a tensor failed: CUDA error: device-side assert triggered\nSearch for it"
        )


def interrupt_after_the_launch() -> tuple[list[bool], str]:
    """Of rank 0, Ctrl-C where it has launched all, and the device is late: whether all that the device uses is kept.
    Of rank 1, the error."""
    all_reduce, values = join("interrupt"), torch.ones(4 * LARGE + 1)[1:]  # not aligned, so copied
    if dist.get_rank() == 1:
        with pytest.raises(AllReduceError) as caught:
            all_reduce(values)
        dist.barrier()
        all_reduce.close()
        return [], str(caught.value)
    device, late, used = all_reduce.stage(CPU).device, threading.Event(), list[weakref.ref[torch.Tensor]]()
    record = HostStream.record_event
    device.decode_stream.do(late.wait)

    def note(given: torch.Tensor, out: torch.Tensor) -> Operand:
        used.extend((weakref.ref(given), weakref.ref(out)))
        return Operand(given, out)

    def interrupted(stream: HostStream) -> Any:
        if stream is device.encode_stream:
            raise KeyboardInterrupt
        return record(stream)

    with (
        patch.object(cuda, "Operand", note),
        patch.object(HostStream, "record_event", interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        all_reduce.submit(values)
    gc.collect()
    kept = [tensor() is not None for tensor in used]
    late.set()
    dist.barrier()
    all_reduce.close()
    return kept, ""


def test_ctrl_c_where_all_was_launched_is_an_error_on_the_others_and_frees_nothing(again: World) -> None:
    (kept, _), (_, why) = again.run(interrupt_after_the_launch)
    assert kept == [True, True]
    assert "rank 0 ended job" in why
    assert why.endswith("KeyboardInterrupt")


class Interrupting(dict[Any, Any]):
    """Ctrl-C comes while something is noted here."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        raise KeyboardInterrupt


def interrupt_before_the_launch() -> tuple[int, str]:
    """Of rank 0, Ctrl-C where the tensor was submitted, and nothing launched: how much is never over. Of rank 1, the
    error."""
    all_reduce, why = join("interrupt-early", 1 << 30), ""
    stage = all_reduce.stage(CPU)
    if dist.get_rank() == 0:
        stage._flights = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            all_reduce.submit(torch.ones(LARGE))
    else:
        with pytest.raises(AllReduceError) as caught:
            all_reduce(torch.ones(LARGE))
        why = str(caught.value)
    left = len(wait(stage.unfinished, LIMIT_S / 2).not_done)
    dist.barrier()
    all_reduce.close()
    return left, why


def test_ctrl_c_where_nothing_was_launched_leaves_nothing_that_is_never_over(again: World) -> None:
    (left, _), (_, why) = again.run(interrupt_before_the_launch)
    assert left == 0
    assert why.endswith("KeyboardInterrupt")


KEEPS = """
import time
import inagg_host.torch
from inagg_host.torch.in_flight import InFlight


class Late:
    def synchronize(self):
        time.sleep(0.5)
        print("has come there", flush=True)


class Nothing:
    def fail(self, error): ...
    def remove(self, codec): ...


InFlight(Nothing(), Nothing(), None, None, None).dropped([Late()], RuntimeError("refused"))
"""


def test_the_interpreters_end_waits_for_a_device_that_may_use_the_memory_of_what_was_refused() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "has come there\n", "")


def close_a_lost_device() -> bool:
    """Whether a job is left in time whose device does not even answer."""
    asked, answers = threading.Event(), threading.Event()

    def check(stream: HostStream) -> None:
        asked.set()
        answers.wait(LIMIT_S)

    with patch.object(cuda, "LOOK_S", 0.05), patch.object(HostStream, "check", check):
        all_reduce = join("lost", 1 << 30)
        all_reduce.stage(CPU)._flights[Future()] = cast("Any", None)  # as if one was on its way
        assert asked.wait(LIMIT_S)
        began_s = time.monotonic()
        all_reduce.close()
        in_time = time.monotonic() - began_s < LIMIT_S / 2
        answers.set()
    dist.barrier()
    return in_time


def test_a_job_can_be_left_though_the_driver_never_returns_from_a_device_that_is_lost(two: World) -> None:
    assert two.run(close_a_lost_device) == [True, True]


def keep_nothing() -> int:
    """How many tensors of failed operations are left, without the garbage collector."""
    all_reduce, used = join("keep"), list[weakref.ref[torch.Tensor]]()

    def note(given: torch.Tensor, out: torch.Tensor) -> Operand:
        used.append(weakref.ref(given))
        return Operand(given, out)

    gc.collect()
    gc.disable()
    try:
        if dist.get_rank() == 0:
            with patch.object(cuda, "Operand", note):
                works = [all_reduce.submit(torch.ones(4 * LARGE + 1)[1:]) for _ in range(8)]
            all_reduce.arrays.close("of no more use", end=True)
            for work in works:
                with pytest.raises(AllReduceError):
                    work.wait()
            del works, work
        give_up_s = time.monotonic() + 10.0
        while (left := sum(tensor() is not None for tensor in used)) and time.monotonic() < give_up_s:
            time.sleep(0.01)
    finally:
        gc.enable()
    dist.barrier()
    all_reduce.close()
    return left


def test_tensors_of_failed_operations_are_free_at_once(two: World) -> None:
    assert two.run(keep_nothing) == [0, 0]


def be_told_again_and_again() -> int:
    """How many frames the error of a job that is over has after many were told of it."""
    all_reduce = join("told")
    all_reduce.close()
    for _ in range(10):
        with pytest.raises(AllReduceError):
            all_reduce.arrays.submit(np.ones(4, np.float32))
    assert all_reduce.arrays.failure is not None
    trace: TracebackType | None = all_reduce.arrays.failure.__traceback__
    frames = 0
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    dist.barrier()
    return frames


def test_an_error_does_not_keep_the_frames_of_all_who_were_told(two: World) -> None:
    assert two.run(be_told_again_and_again) == [0, 0]


def handle_a_signal(submits: bool) -> str:
    """What a handler is told that sums, or ends the job, in the middle of submitting a tensor."""
    all_reduce, launch, said = join(f"handle-{submits}"), TensorDevice.launch, list[str]()

    def handle(*_: object) -> None:
        if submits:
            with pytest.raises(RuntimeError) as caught:
                all_reduce.submit(torch.ones(LARGE))
            said.append(str(caught.value))
        else:
            all_reduce.close("told to", end=True)

    def launch_and_be_told(*given: Any) -> None:
        launch(*given)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with patch.object(TensorDevice, "launch", launch_and_be_told):
            work = all_reduce.submit(torch.ones(LARGE))
        if submits:
            work.result()
        else:
            with pytest.raises(AllReduceError):  # these sums may have come before
                all_reduce.submit(torch.ones(LARGE)).result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    dist.barrier()
    all_reduce.close()
    return "; ".join(said)


def test_a_handler_may_end_the_job_while_a_tensor_is_submitted(again: World) -> None:
    again.run(handle_a_signal, False)


def test_a_handler_cannot_submit_a_tensor_in_the_middle_of_another(again: World) -> None:
    assert "a signal handler cannot submit another one" in equal(again.run(handle_a_signal, True))
