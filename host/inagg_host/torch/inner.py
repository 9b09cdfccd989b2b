"""Process groups that do what the switch does not: plain C++ Gloo, and NCCL for CUDA, unknown to torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup

from inagg_host.core.reconcile import Bytes

NUMBERS_GROUPS = not hasattr(dist, "_reconfigure")
"""Before torch 2.15, which numbers them itself, and warns of whoever asks for it."""


def make_inner(store: Store, rank: int, workers: int, timeout: timedelta, cuda: bool = True) -> ProcessGroup:
    """A group made from ``store``, in which no other may have used the same keys; all ranks call it at once.

    It serves tensors of the CPU, and with ``cuda`` those of CUDA if there is any.
    """
    inner = ProcessGroup(store, rank, workers)
    inner._set_default_backend(ProcessGroup.BackendType.GLOO)
    gloo = dist.ProcessGroupGloo(PrefixStore("gloo/", store), rank, workers, timeout)
    if NUMBERS_GROUPS:
        gloo._set_sequence_number_for_group()
    inner._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
    if cuda and torch.cuda.is_available():
        if dist.is_nccl_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            nccl = dist.ProcessGroupNCCL(PrefixStore("nccl/", store), rank, workers, options)
            if NUMBERS_GROUPS:
                nccl._set_sequence_number_for_group()
            inner._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
        else:
            inner._register_backend(torch.device("cuda"), ProcessGroup.BackendType.GLOO, gloo)
    return inner


def gather(group: ProcessGroup, data: bytes) -> list[bytes]:
    """Every rank's bytes, of any length, in the order of ranks. ``group`` need not be known to torch.distributed."""
    mine = torch.tensor([len(data)])
    sizes = [torch.empty_like(mine) for _ in range(group.size())]
    group.allgather([sizes], [mine]).wait()
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    parts = [torch.empty_like(padded) for _ in range(group.size())]
    if longest:
        group.allgather([parts], [padded]).wait()
    return [part.numpy()[: int(size)].tobytes() for part, size in zip(parts, sizes, strict=True)]


class ArrayGroup:
    """Blocking collectives of arrays: `inagg_host.core.reconcile.InnerGroup`, for the policy "fallback".

    A group of its own, since it is used on a thread of its own: two threads on one group would mix up the order.
    """

    def __init__(self, store: Store, rank: int, workers: int, timeout: timedelta) -> None:
        """As `make_inner`."""
        self._group = make_inner(store, rank, workers, timeout, cuda=False)

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, of any length, in the order of ranks."""
        return gather(self._group, data)

    def broadcast(self, data: Bytes, source: int) -> None:
        """Rank ``source``'s 1-D uint8 array to all, in place; of the same size on all."""
        self._group.broadcast(torch.from_numpy(data), source).wait()

    def all_reduce(self, values: npt.NDArray[Any]) -> None:
        """Sum a contiguous 1-D float32 or float64 array over all ranks, in place."""
        self._group.allreduce([torch.from_numpy(values)]).wait()

    def close(self) -> None:
        """End the group."""
        self._group.shutdown()
