"""Process groups that do what the switch does not: plain C++ Gloo, and NCCL for CUDA, unknown to torch.distributed."""

from __future__ import annotations

import os
import sys
import time
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import default_pg_timeout

from inagg_host.config import TIME_MAX_S, ConfigError
from inagg_host.core.reconcile import Bytes
from inagg_host.errors import CLOSED, AllReduceError

DROPPED_WITHIN_S = 1.0
"""How long Gloo may take to let go of what it has gathered. It takes microseconds, on a busy machine milliseconds."""

CUDA_INNER = "INAGG_CUDA_INNER"
"""The environment's word for what serves CUDA tensors."""

NCCL_LATER = timedelta(minutes=1)
"""How much later than the time limit NCCL's watchdog ends the process. It counts from when an operation is launched,
which may be behind sums that a stream waits for; when these do not come, `AllReduceError` is to say so first."""

NUMBERS_GROUPS = not hasattr(dist, "_reconfigure")
"""Before torch 2.15, which numbers them itself, and warns of whoever asks for it."""


def make_inner(store: Store, rank: int, workers: int, timeout: timedelta, cuda: bool = True) -> ProcessGroup:
    """A group made from ``store``, in which no other may have used the same keys; all ranks call it at once.

    It serves tensors of the CPU, and with ``cuda`` those of CUDA if there is any: by NCCL, or by Gloo, if there is no
    NCCL or INAGG_CUDA_INNER says so. Raises `ConfigError`.
    """
    by = os.environ.get(CUDA_INNER) or "nccl"
    if by not in ("nccl", "gloo"):
        raise ConfigError(f"{CUDA_INNER}={by!r}: give nccl, or gloo, for ranks that share a GPU")
    inner = ProcessGroup(store, rank, workers)
    inner._set_default_backend(ProcessGroup.BackendType.GLOO)
    gloo = dist.ProcessGroupGloo(PrefixStore("gloo/", store), rank, workers, timeout)
    if NUMBERS_GROUPS:
        gloo._set_sequence_number_for_group()
    inner._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
    if cuda and torch.cuda.is_available():
        if by == "nccl" and dist.is_nccl_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = nccl_limit(timeout)
            nccl = dist.ProcessGroupNCCL(PrefixStore("nccl/", store), rank, workers, options)
            if NUMBERS_GROUPS:
                nccl._set_sequence_number_for_group()
            inner._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
        else:
            inner._register_backend(torch.device("cuda"), ProcessGroup.BackendType.GLOO, gloo)
    return inner


def nccl_limit(timeout: timedelta) -> timedelta:
    """When NCCL's watchdog ends the process, if an operation may take as long as ``timeout``."""
    return min(timeout, timedelta(seconds=TIME_MAX_S)) + NCCL_LATER


def gather(group: ProcessGroup, data: bytes) -> list[bytes]:
    """Every rank's bytes, of any length, in the order of ranks. ``group`` need not be known to torch.distributed."""
    mine = np.array([len(data)], np.int64).view(np.uint8)
    sizes = [int.from_bytes(size, sys.byteorder) for size in _gather(group, mine)]
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    parts = _gather(group, padded) if padded.size else [b""] * group.size()
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def _gather(group: ProcessGroup, data: npt.NDArray[np.uint8]) -> list[bytes]:
    """Version of `gather` for 1-D arrays that are of one size on all ranks."""
    mine = torch.from_numpy(data)
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    group.allgather([parts], [mine]).wait()
    gathered = [part.numpy().tobytes() for part in parts]
    lent = [weakref.ref(tensor) for tensor in (mine, *parts)]
    del mine
    parts.clear()
    _until_dropped(lent)
    return gathered


def _until_dropped(lent: list[weakref.ref[torch.Tensor]]) -> None:
    """Return when nobody has the tensors any more. A thread of Gloo keeps those of a work a moment longer than the work
    takes, and needs the interpreter to drop them: if that is ending, since it was the last work of a script that gives
    up, the whole process ends with SIGABRT. (Who else keeps them, such as a profiler, does not hold us up for long.)"""
    give_up_s = time.monotonic() + DROPPED_WITHIN_S
    while any(tensor() is not None for tensor in lent) and time.monotonic() < give_up_s:
        time.sleep(0)  # gives the interpreter away


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long an operation of ``group`` may take: the shortest time that a backend of it has, Gloo's or NCCL's, which
    is what `init_process_group` or `new_group` was told. PyTorch's own 30 minutes where no backend tells."""
    limits = []
    for device in group._device_types:
        # A backend that is written in Python, or somebody else's, may have no options, or others.
        with suppress(RuntimeError, AttributeError):
            limit = group._get_backend(device).options._timeout
            if isinstance(limit, timedelta):
                limits.append(limit)
    return min(limits, default=default_pg_timeout)


def collect(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Version of `gather` for a group that torch.distributed knows."""
    everyone = [b""] * group.size()
    dist.all_gather_object(everyone, data, group=group)
    return everyone


class ArrayGroup:
    """Blocking collectives of arrays: `inagg_host.core.reconcile.InnerGroup`, for the policy "fallback".

    A group of its own, since it is used on a thread of its own: two threads on one group would mix up the order.
    """

    def __init__(self, store: Store, rank: int, workers: int, timeout: timedelta) -> None:
        """Arguments are those of `make_inner`."""
        self._made: ProcessGroup | None = make_inner(store, rank, workers, timeout, cuda=False)

    @property
    def _group(self) -> ProcessGroup:
        if self._made is None:
            raise AllReduceError(CLOSED)
        return self._made

    def gather(self, data: bytes) -> list[bytes]:
        return gather(self._group, data)

    def broadcast(self, data: Bytes, source: int) -> None:
        self._group.broadcast(torch.from_numpy(data), source).wait()

    def all_reduce(self, values: npt.NDArray[Any]) -> None:
        self._group.allreduce([torch.from_numpy(values)]).wait()

    def close(self) -> None:
        """End the group. No error if called twice."""
        group, self._made = self._made, None  # Gloo's connections end with the object, and the others hear of it
        if group is not None:
            group.shutdown()
