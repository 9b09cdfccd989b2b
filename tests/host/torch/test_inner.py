"""The inner groups, and what Gloo keeps of what it was given."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup

from inagg_host.config import ConfigError
from inagg_host.torch.inner import NCCL_LATER, gather, make_inner, nccl_limit


class Watched:
    """A group of one rank that remembers which tensors it was given."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.given = group, list[weakref.ref[torch.Tensor]]()

    def size(self) -> int:
        return self.group.size()

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> Any:
        self.given += [weakref.ref(tensor) for tensor in (*outputs[0], *inputs)]
        return self.group.allgather(outputs, inputs)


@pytest.fixture
def slow_to_change_threads() -> Iterator[None]:
    """Threads that want the interpreter have it when others wait, and not before."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("slow_to_change_threads")
def test_gloo_has_nothing_left_of_what_was_gathered() -> None:
    """Else its thread ends the process, if the interpreter is ending when it drops that."""
    group: Any = Watched(make_inner(HashStore(), 0, 1, timedelta(seconds=10)))
    for _ in range(50):
        assert gather(group, b"what a rank says") == [b"what a rank says"]
        assert not [tensor for tensor in group.given if tensor() is not None]


def test_what_serves_cuda_tensors_is_nccl_or_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INAGG_CUDA_INNER", "mpi")
    with pytest.raises(ConfigError, match="INAGG_CUDA_INNER='mpi': give nccl, or gloo, for ranks that share a GPU"):
        make_inner(HashStore(), 0, 1, timedelta(seconds=10))


def test_nccls_limit_is_later_than_that_of_operations_and_there_is_one_for_the_longest() -> None:
    assert nccl_limit(timedelta(minutes=1)) == timedelta(minutes=1) + NCCL_LATER
    assert nccl_limit(timedelta.max) > timedelta(days=3650)
