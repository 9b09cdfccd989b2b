"""The torch.distributed backend "inagg": a process group that sums floats in the network.

SUM and AVG of floating tensors that are not small go to the switch, in all-reduce and reduce-scatter; everything else
goes to an inner C++ group and is counted by reason. Each operation is forwarded explicitly: those that a Python process
group inherits hold the GIL while Gloo waits for a lock whose holder waits for the GIL.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch._compile import _disable_dynamo
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.distributed_c10d import GroupName

from inagg_host.counters import Counters

from .inner import ArrayGroup, make_inner
from .job import GroupJob, agree_by
from .options import Options
from .work import JoinedWork

BACKEND = "inagg"

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


def _eager(method: Callable[P, T]) -> Callable[P, T]:
    """Keep `torch.compile` from tracing ``method``: in a DDP module it would trace into it, and fail."""
    disabled = _disable_dynamo(method)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # The first call of what is disabled takes seconds, to import the compiler.
        return (disabled if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return call


class InaggGroup(ProcessGroup):
    """A process group of the backend "inagg". Made by `init_process_group` and `new_group`."""

    def __init__(
        self, store: Store, rank: int, workers: int, timeout: timedelta, label: str = "group",
        options: dict[str, Any] | None = None, join: bool = True,
    ) -> None:  # fmt: skip
        """``join`` now, or when the first tensor needs the switch. Raises `ConfigError` or `AllReduceError`."""
        super().__init__(rank, workers)  # type: ignore[call-arg]  # the stubs know the other constructor only
        self._name, self._desc = GroupName(""), ""
        self.inner = make_inner(PrefixStore("inagg/", store), rank, workers, timeout)
        """What does all that the switch does not."""

        def spare(name: str) -> ArrayGroup:
            return ArrayGroup(PrefixStore(f"{name}/", store), rank, workers, timeout)

        self.job = GroupJob(options or {}, rank, workers, timeout, label, agree_by(self.inner), spare)
        if join and workers > 1:
            try:
                self.job.join()
            except BaseException:
                self.inner.shutdown()
                raise

    # --- sums ---

    @_eager
    def allreduce(self, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.all_reduce`. Also takes what the overloads of the C++ class take."""
        tensors, op = _arguments(("tensors", "op"), args, kwargs)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        why_not = "not-one-tensor" if len(tensors) != 1 else self.job.why_not(tensors[0], op)
        if why_not is None:
            return self.job.sum(tensors[0], op)
        self.job.inner[why_not] += 1
        return self.inner.allreduce(*args, **kwargs)

    @_eager
    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.all_reduce_coalesced`. Each tensor goes where it would go alone."""
        tensors, op = _arguments(("tensors", "op"), args, kwargs)
        return self._split(
            [self.job.why_not(tensor, op) for tensor in tensors],
            lambda i: self.job.sum(tensors[i], op),
            lambda rest: self.inner.allreduce_coalesced([tensors[i] for i in rest], *args[1:], **kwargs),
            tensors,
        )

    @_eager
    def reduce_scatter_single(self, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.reduce_scatter_single`: what FSDP2 does with gradients."""
        return self._reduce_scatter_single("reduce_scatter_single", args, kwargs)

    @_eager
    def _reduce_scatter_base(self, *args: Any, **kwargs: Any) -> dist.Work:
        return self._reduce_scatter_single("_reduce_scatter_base", args, kwargs)

    def _reduce_scatter_single(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dist.Work:
        output, tensor, op = _arguments(("outputTensor", "inputTensor", "op"), args, kwargs)
        why_not = self.job.why_not(tensor, op)
        if why_not is None:
            return self.job.sum_scattered(output, tensor, op)
        self.job.inner[why_not] += 1
        work: dist.Work = getattr(self.inner, name)(*args, **kwargs)
        return work

    @_eager
    def reduce_scatter_single_coalesced(self, *args: Any, **kwargs: Any) -> dist.Work:
        """As several of `reduce_scatter_single`. Functional collectives come here, with lists of one."""
        return self._reduce_scatter_coalesced("reduce_scatter_single_coalesced", args, kwargs)

    @_eager
    def reduce_scatter_tensor_coalesced(self, *args: Any, **kwargs: Any) -> dist.Work:
        """The name of `reduce_scatter_single_coalesced` before torch 2.13."""
        return self._reduce_scatter_coalesced("reduce_scatter_tensor_coalesced", args, kwargs)

    def _reduce_scatter_coalesced(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dist.Work:
        outputs, tensors, op = _arguments(("outputTensors", "inputTensors", "op"), args, kwargs)
        inner = getattr(self.inner, name)
        return self._split(
            [self.job.why_not(tensor, op) for tensor in tensors],
            lambda i: self.job.sum_scattered(outputs[i], tensors[i], op),
            lambda rest: inner([outputs[i] for i in rest], [tensors[i] for i in rest], *args[2:], **kwargs),
            outputs,
        )

    def _split(
        self,
        why_not: Sequence[str | None],
        carry: Callable[[int], dist.Work],
        forward: Callable[[list[int]], dist.Work],
        tensors: list[torch.Tensor],
    ) -> dist.Work:
        """Have those without a reason carried one by one, and the rest forwarded in one go."""
        rest = [i for i, reason in enumerate(why_not) if reason is not None]
        self.job.inner.update(reason for reason in why_not if reason is not None)
        if len(rest) == len(tensors):
            return forward(rest)
        works = [carry(i) for i, reason in enumerate(why_not) if reason is None]
        return JoinedWork([*works, *([forward(rest)] if rest else [])], tensors)

    # --- the group ---

    @property
    def counters(self) -> Counters:
        """What this rank has done in this group, brought up to date."""
        return self.job.counters

    def getBackendName(self) -> str:  # noqa: N802  # C++ calls it
        """The name under which the backend is registered."""
        return BACKEND

    # The C++ class keeps the name in its backends, of which this has none. Python asks for the properties, C++ for the
    # methods.
    @property
    def group_name(self) -> GroupName:
        """Torch's name of the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._desc

    def getGroupName(self) -> str:  # noqa: N802
        """As `group_name`."""
        return self._name

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

    def set_timeout(self, timeout: timedelta) -> None:
        """For what the inner group does. An operation of the switch may take as long as was said at the start."""
        self.inner.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the job and end the inner group: `destroy_process_group` calls this."""
        self.job.close()
        self.inner.shutdown()

    def abort(self) -> None:
        """As `shutdown`, but what the inner group is doing fails."""
        self.job.close()
        self.inner.abort()

    def split_group(self, *args: Any, **kwargs: Any) -> ProcessGroup:
        """Raises NotImplementedError: a part of a group would be a group of the inner kind without anyone noticing."""
        raise NotImplementedError('inagg groups cannot be split: use torch.distributed.new_group(backend="inagg")')

    merge_remote_group = split_group


def _forward(name: str, count: bool) -> Callable[..., Any]:
    def method(self: InaggGroup, *args: Any, **kwargs: Any) -> Any:
        if count:
            self.job.inner[name] += 1
        return getattr(self.inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in itertools.chain(FORWARDED, PLUMBING):
    if hasattr(ProcessGroup, _name):  # releases of torch differ
        _method = _forward(_name, _name in FORWARDED)
        setattr(InaggGroup, _name, _eager(_method) if _name in FORWARDED else _method)


def _arguments(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a reduction: tensors as named, then the `ReduceOp`, which may come inside of options."""
    values = list(args[: len(names)])
    for name in names[len(values) : -1]:
        values.append(kwargs.get(name))
    if len(values) < len(names):
        values.append(kwargs.get("op", kwargs.get("opts")))
    op = values[-1]
    values[-1] = ReduceOp.SUM if op is None else getattr(op, "reduceOp", op)
    return values


def register() -> None:
    """Make the backend known to torch.distributed. No error if called twice."""
    # The workers of a DataLoader are forked and call no gRPC. Without this, gRPC logs a line for each of them.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(given: Any, options: Options | None) -> InaggGroup:
    """What torch.distributed calls for a group; ``given`` is its `_DistributedBackendOptions`."""
    # Beside Gloo or NCCL, or with options, a group of ours was asked for by name: that the switch is not there should
    # be said at once. In a world of our own each new group is ours, and most never sum anything.
    asked_for = options is not None or not dist.is_initialized() or dist.get_backend() != BACKEND
    ranks = given.global_ranks_in_group
    label = "world" if not ranks else "-".join(map(str, ranks))
    said = {} if options is None else options.options
    return InaggGroup(given.store, given.group_rank, given.group_size, given.timeout, label, said, join=asked_for)
