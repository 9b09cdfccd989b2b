"""A process group in Python that leaves everything to an inner C++ group, and counts it.

Each operation is forwarded explicitly: those that a Python process group inherits hold the GIL while Gloo waits for a
lock whose holder waits for the GIL.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

from .eager import eager

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName  # torch 2.9 does not have it

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
"""Methods of a group that torch calls about its C++ backends."""


class ForwardingGroup(ProcessGroup):
    """Does what ``inner`` does. A derived class overrides what it does itself."""

    def __init__(self, inner: ProcessGroup, counts: Counter[str], rank: int, workers: int) -> None:
        """``counts`` is where operations are counted, by their names."""
        super().__init__(rank, workers)  # type: ignore[call-arg]  # the stubs know the other constructor only
        coalesce_batches()
        self.inner, self.counts = inner, counts
        # What torch asks of the C++ part of a group, such as the name under which it records operations, is the default
        # backend's to answer: from torch 2.15 on `init_process_group` fails where there is none.
        self.all_gloo = True
        for device in inner._device_types:
            backend = inner._get_backend(device)
            self.all_gloo &= backend.name() == "gloo"
            self._register_backend(device, getattr(ProcessGroup.BackendType, backend.name().upper()), backend)
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._name: Any = ""  # a GroupName, once torch has given it
        self._desc = ""

    def begin(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have ``inner`` begin one of its operations; its work, if it has one."""
        return operation(*args, **kwargs)

    # The C++ class keeps the name in its backends, of which this has none. Python asks for the properties, C++ for the
    # methods.
    @property
    def group_name(self) -> GroupName:
        """Torch's name of the group."""
        name: GroupName = self._name
        return name

    @property
    def group_desc(self) -> str:
        """Torch's description of the group."""
        return self._desc

    def getGroupName(self) -> str:  # noqa: N802
        return str(self._name)

    def getGroupDesc(self) -> str:  # noqa: N802
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
            return self.begin(getattr(self.inner, name), *args, **kwargs)
        return getattr(self.inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in itertools.chain(FORWARDED, PLUMBING):
    if hasattr(ProcessGroup, _name):  # releases of torch differ
        _method = _forward(_name, _name in FORWARDED)
        setattr(ForwardingGroup, _name, eager(_method) if _name in FORWARDED else _method)


# --- batches of sends and receives ---


def coalesce_batches() -> None:
    """Have `torch.distributed.batch_isend_irecv` coalesce for a `ForwardingGroup`, too. No error if called twice.

    Torch does so for groups of one class alone, and not of derived ones. NCCL then has each send and receive alone, one
    after the other: two ranks that both send first wait for each other, as soon as messages are large.

    The function stays the one that it was, with other code: scripts may have imported it before there was a group, and
    `torch.compile` knows it by its identity.
    """
    function: Any = inspect.unwrap(distributed_c10d.batch_isend_irecv)
    # Later releases ask isinstance. What was replaced does not ask, either.
    if isinstance(function, FunctionType) and "type" in function.__code__.co_names:
        copy = FunctionType(function.__code__, function.__globals__, function.__name__)
        function.inagg_replaced = copy  # type: ignore[attr-defined]
        function.__code__ = _replacement.__code__


def _replacement(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
    # It runs with the globals of torch's module.
    from inagg_host.torch.forwarding import batch_isend_irecv

    return batch_isend_irecv(p2p_op_list)


def batch_isend_irecv(ops: Any) -> list[dist.Work]:
    """Do what torch's function does, and for a `ForwardingGroup` what it would do for the inner group."""
    function: Any = inspect.unwrap(distributed_c10d.batch_isend_irecv)
    one_by_one: Callable[[Any], list[dist.Work]] = function.inagg_replaced  # for all but its own class
    if not isinstance(ops, list) or not ops or not isinstance(ops[0], dist.P2POp):
        return one_by_one(ops)  # which says what is wrong
    group, device = ops[0].group, ops[0].tensor.device
    if isinstance(group, ForwardingGroup) and group._get_backend(device).supports_coalescing:
        distributed_c10d._check_p2p_op_list(ops)  # before it begins: torch does not end what has failed
        with distributed_c10d._coalescing_manager(group, device, async_ops=True) as manager:
            one_by_one(ops)
        works: list[dist.Work] = manager.works
        return works
    return one_by_one(ops)
