"""What functions that run on ranks share."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist

from inagg_host.torch import InaggGroup

LARGE = 10_000
"""Elements of a tensor that goes to the switch, whatever its type."""


def world() -> InaggGroup:
    """The default group, on a rank."""
    group = dist.group.WORLD
    assert isinstance(group, InaggGroup)
    return group


def digest(*tensors: torch.Tensor) -> str:
    """Equal if and only if the bits are."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


class Counted:
    """What a block added to the counters of a group, or of the default one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        group = group or world()
        assert isinstance(group, InaggGroup)
        self._group = group

    def __enter__(self) -> Counted:
        self._before = self._group.counters
        return self

    def __exit__(self, *exception: object) -> None:
        after = self._group.counters
        self.carried = after.operations - self._before.operations
        inner = {reason: count - self._before.inner.get(reason, 0) for reason, count in after.inner.items()}
        self.inner = {reason: count for reason, count in inner.items() if count}


def equal(results: list[Any]) -> Any:
    """What all ranks have returned."""
    assert all(result == results[0] for result in results), results
    return results[0]
