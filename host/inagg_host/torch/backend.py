"""The torch.distributed backend "inagg": a process group that sums floats in the network.

SUM and AVG of floating tensors that are not small go to the switch, in all-reduce and reduce-scatter, in the format
that `formats` says; everything else goes to an inner C++ group and is counted by reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ReduceOp

from inagg_host.autoload import BACKEND
from inagg_host.stats import Counters

from . import inner_work
from .cuda import bring
from .eager import eager
from .formats import EXACT
from .forwarding import ForwardingGroup
from .gpu.device import is_plain
from .inner import gather, make_inner
from .job import GroupJob
from .jobs import GroupJobs
from .options import Options, with_local_size
from .rendezvous import rendezvous
from .tensors import sharing
from .work import JoinedWork, finished


class InaggGroup(ForwardingGroup):
    """A process group of the backend "inagg". Made by `init_process_group` and `new_group`."""

    def __init__(
        self, store: Store, rank: int, workers: int, timeout: timedelta, label: str = "group",
        options: dict[str, Any] | None = None, join: bool = True,
    ) -> None:  # fmt: skip
        """``join`` now, or when the first tensor needs the switch. Raises `ConfigError` or `AllReduceError`."""
        inner, self.jobs = come_together(store, rank, workers, timeout, label, options or {}, join)
        super().__init__(inner, self.jobs.inner, rank, workers)

    def begin(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Begin as `ForwardingGroup.begin`. Errors of Gloo then say who is gone, if the switch knows."""
        if self.all_gloo or inner_work.on_cpu((*args, *kwargs.values())):
            return inner_work.begin(self.jobs.names, operation, *args, **kwargs)
        return operation(*args, **kwargs)  # NCCL's works tell nothing: its watchdog ends the process

    # --- sums ---

    @eager
    def allreduce(self, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.all_reduce`. Also takes what the overloads of the C++ class take."""
        tensors, op = _arguments(("tensors", "op"), args, kwargs)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        job = self.jobs.current()
        why_not = "not-one-tensor" if len(tensors) != 1 else job.why_not(tensors[0], op)
        if why_not is None:
            return job.sum(tensors[0], op, wait=_waits(*args, *kwargs.values()))
        self.counts[why_not] += 1
        args, kwargs = args[1:], _without(kwargs, "tensors", "tensor")
        return _in_order(tensors, lambda lent: self.begin(self.inner.allreduce, lent, *args, **kwargs))

    @eager
    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.all_reduce_coalesced`. Each tensor goes where it would go alone, but for those that
        share memory, which the inner group sums as they are before any of them is written to."""
        tensors, op = _arguments(("tensors", "op"), args, kwargs)
        args, kwargs, job = args[1:], _without(kwargs, "tensors"), self.jobs.current()
        why_not = [job.why_not(tensor, op) for tensor in tensors]
        for i in sharing({i: tensor for i, tensor in enumerate(tensors) if why_not[i] is None}):
            why_not[i] = "shared-memory"
        return self._split(
            job, op, tensors, None, why_not,
            lambda rest: _in_order(
                [tensors[i] for i in rest],
                lambda lent: self.begin(self.inner.allreduce_coalesced, lent, *args, **kwargs),
            ),
        )  # fmt: skip

    def _split(
        self,
        job: GroupJob,
        op: Any,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor] | None,
        why_not: Sequence[str | None],
        forward: Callable[[list[int]], dist.Work],
    ) -> dist.Work:
        """Have those without a reason summed by ``job`` one by one, in place or scattered to ``outputs``, and the rest
        forwarded in one go. Raises ValueError, and begins nothing, if one of them cannot be."""
        targets, scatter = outputs or tensors, outputs is not None
        mine = [i for i, reason in enumerate(why_not) if reason is None]
        rest = [i for i, reason in enumerate(why_not) if reason is not None]
        for i in mine:
            job.check(tensors[i], targets[i], scatter)
        self.counts.update(reason for reason in why_not if reason is not None)
        if not mine:
            return forward(rest)
        works = job.sum_all([tensors[i] for i in mine], op, [targets[i] for i in mine], scatter)
        return JoinedWork([*works, *([forward(rest)] if rest else [])], targets)

    # --- the group ---

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has done in this group, brought up to date."""
        return self.jobs.counters

    def get_error(self) -> Exception | None:
        """Why this group can sum nothing more over the switch; None if it can."""
        return self.jobs.failure

    def getBackendName(self) -> str:  # noqa: N802  # C++ calls it
        """The name under which the backend is registered."""
        return BACKEND

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long operations may take, as `torch.distributed.set_timeout` does: those of the inner group, and sums
        of the switch, also those that were begun before."""
        self.jobs.set_timeout(timeout)
        self.inner.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the job and end the inner group: `destroy_process_group` calls this."""
        self.jobs.close()
        self.inner.shutdown()

    def abort(self) -> None:
        """End the job for all ranks, and have fail what the inner group is doing: that first, since the device may be
        stuck in it, and sums that have come wait for the device."""
        try:
            self.inner.abort()
        finally:
            self.jobs.abort()


def _scatter(name: str) -> Callable[..., dist.Work]:
    """A method of that name which reduce-scatters one tensor."""

    def method(self: InaggGroup, *args: Any, **kwargs: Any) -> dist.Work:
        output, tensor, op = _arguments(("outputTensor", "inputTensor", "op"), args, kwargs)
        job = self.jobs.current(scatters=True)
        why_not = job.why_not(tensor, op)
        if why_not is None:
            return job.sum(tensor, op, output, scatter=True)
        self.counts[why_not] += 1
        work: dist.Work = self.begin(getattr(self.inner, name), *args, **kwargs)
        return work

    method.__name__ = name
    return eager(method)


def _scatter_coalesced(name: str) -> Callable[..., dist.Work]:
    """A method as of `_scatter`, for several tensors. Functional collectives come here, with lists of one."""

    def method(self: InaggGroup, *args: Any, **kwargs: Any) -> dist.Work:
        outputs, tensors, op = _arguments(("outputTensors", "inputTensors", "op"), args, kwargs)
        inner, args, kwargs = getattr(self.inner, name), args[2:], _without(kwargs, "outputTensors", "inputTensors")
        job = self.jobs.current(scatters=True)
        return self._split(
            job, op, tensors, outputs, [job.why_not(tensor, op) for tensor in tensors],
            lambda rest: self.begin(inner, [outputs[i] for i in rest], [tensors[i] for i in rest], *args, **kwargs),
        )  # fmt: skip

    method.__name__ = name
    return eager(method)


for _name in ("reduce_scatter_single", "_reduce_scatter_base"):  # what FSDP2 does with gradients
    setattr(InaggGroup, _name, _scatter(_name))
for _name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):  # from torch 2.13 on, and before
    setattr(InaggGroup, _name, _scatter_coalesced(_name))


def come_together(
    store: Store, rank: int, workers: int, timeout: timedelta, label: str, options: dict[str, Any], join: bool,
    limit: timedelta | None = None,
) -> tuple[dist.ProcessGroup, GroupJobs]:  # fmt: skip
    """The inner group and the jobs of a group's ranks, who all call this within ``limit`` (None: ``timeout``, which is
    that of operations). Raises as `InaggGroup`."""
    store = rendezvous(PrefixStore("inagg/", store), rank, workers, limit or timeout)
    inner = make_inner(store, rank, workers, timeout)

    def make(form: str | None) -> GroupJob:
        given = {**options, **({} if form is None else {"format": form})}
        return GroupJob(given, rank, workers, timeout, label, partial(gather, inner), store, EXACT)

    try:
        jobs = GroupJobs(make)
        if join and workers > 1:
            jobs.own.join()
    except BaseException:
        inner.shutdown()
        raise
    return inner, jobs


def _in_order(tensors: list[torch.Tensor], forward: Callable[[list[torch.Tensor]], dist.Work]) -> dist.Work:
    """The work of ``forward`` on tensors, in place. Gloo sums memory as it lies, as long as there are elements,
    whatever the strides: so those that are strided are lent to it in order, and waited for."""
    lent = [
        t if t.layout is not torch.strided or is_plain(t) else t.detach().contiguous().resolve_neg() for t in tensors
    ]
    work = forward(lent)
    strided = [(tensor, copy) for tensor, copy in zip(tensors, lent, strict=True) if copy is not tensor]
    if not strided:
        return work
    work.wait()
    for tensor, copy in strided:
        bring(tensor.detach(), copy)
    return finished(tensors)


def _arguments(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a reduction: tensors as named, then the `ReduceOp`, which may come inside of options."""
    values = list(args[: len(names)])
    for name in names[len(values) : -1]:
        values.append(kwargs.get(name, kwargs.get("tensor")))  # one of the overloads has the singular
    if len(values) < len(names):
        values.append(kwargs.get("op", kwargs.get("opts")))
    op = values[-1]
    values[-1] = ReduceOp.SUM if op is None else getattr(op, "reduceOp", op)
    return values


def _waits(*arguments: Any) -> bool:
    """Whether the caller waits for the result at once, as their options say."""
    return not all(getattr(argument, "asyncOp", True) for argument in arguments)


def _without(kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}


def create(given: Any, options: object) -> InaggGroup:
    """Make a group, for torch.distributed; ``given`` is its `_DistributedBackendOptions`."""
    # Beside Gloo or NCCL, or with options, a group of ours was asked for by name: that the switch is not there should
    # be said at once. In a world of our own each new group is ours, and most never sum anything.
    asked_for = options is not None or not dist.is_initialized() or dist.get_backend() != BACKEND
    ranks = given.global_ranks_in_group
    label = "world" if not ranks else "-".join(map(str, ranks))
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: give inagg_host.torch.Options")
    said = {} if options is None else options.options
    if ranks:
        said = with_local_size(said, ranks)
    if getattr(given, "enable_reconfigure", False):  # from torch 2.15 on
        from .reconfigurable import ReconfigurableGroup

        return ReconfigurableGroup(given.timeout, said)
    return InaggGroup(given.store, given.group_rank, given.group_size, given.timeout, label, said, join=asked_for)
