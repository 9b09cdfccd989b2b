"""A process group in Python that leaves everything to an inner C++ group, and counts it.

Each operation is forwarded explicitly: those that a Python process group inherits hold the GIL while Gloo waits for a
lock whose holder waits for the GIL.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch.distributed import ProcessGroup

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName  # torch 2.9 does not have it

P = ParamSpec("P")
T = TypeVar("T")

FORWARDED = (
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
)
"""Operations that the inner group does, whatever their arguments; counted under their names."""

PLUMBING = (
    "_enable_collectives_timing",
    "_end_coalescing",
    "_get_backend",
    "_get_sequence_number_for_group",
    "_has_hooks",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_start_coalescing",
    "_wait_for_pending_works",
)
"""What torch asks a group about its C++ backends."""


def eager(method: Callable[P, T]) -> Callable[P, T]:
    """Keep `torch.compile` from tracing ``method``: in a DDP module it would trace into it, and fail."""
    disabled = _disable_dynamo(method)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # The first call of what is disabled takes seconds, to import the compiler.
        return (disabled if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return call


class ForwardingGroup(ProcessGroup):
    """Does what ``inner`` does. A derived class overrides what it does itself."""

    def __init__(self, inner: ProcessGroup, counts: Counter[str], rank: int, workers: int) -> None:
        """``counts`` is where operations are counted, by their names."""
        super().__init__(rank, workers)  # type: ignore[call-arg]  # the stubs know the other constructor only
        self.inner, self.counts = inner, counts
        # What torch asks of the C++ part of a group, such as the name under which it records operations, is the default
        # backend's to answer: from torch 2.15 on `init_process_group` fails where there is none.
        for device in inner._device_types:
            backend = inner._get_backend(device)
            self._register_backend(device, getattr(ProcessGroup.BackendType, backend.name().upper()), backend)
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._name: Any = ""  # a GroupName, once torch has given it
        self._desc = ""

    # The C++ class keeps the name in its backends, of which this has none. Python asks for the properties, C++ for the
    # methods.
    @property
    def group_name(self) -> GroupName:
        """Torch's name of the group."""
        name: GroupName = self._name
        return name

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._desc

    def getGroupName(self) -> str:  # noqa: N802
        """As `group_name`."""
        return str(self._name)

    def getGroupDesc(self) -> str:  # noqa: N802
        """As `group_desc`."""
        return self._desc

    def _set_group_name(self, name: GroupName) -> None:
        self._name = name

    setGroupName = _set_group_name  # noqa: N815

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    setGroupDesc = _set_group_desc  # noqa: N815

    @property
    def _device_types(self) -> list[torch.device]:
        return self.inner._device_types

    def split_group(self, *args: Any, **kwargs: Any) -> ProcessGroup:
        """Raises NotImplementedError: a part of a group would be a group of the inner kind without anyone noticing."""
        raise NotImplementedError('inagg groups cannot be split: use torch.distributed.new_group(backend="inagg")')

    merge_remote_group = split_group


def _forward(name: str, count: bool) -> Callable[..., Any]:
    def method(self: ForwardingGroup, *args: Any, **kwargs: Any) -> Any:
        if count:
            self.counts[name] += 1
        return getattr(self.inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in itertools.chain(FORWARDED, PLUMBING):
    if hasattr(ProcessGroup, _name):  # releases of torch differ
        _method = _forward(_name, _name in FORWARDED)
        setattr(ForwardingGroup, _name, eager(_method) if _name in FORWARDED else _method)
