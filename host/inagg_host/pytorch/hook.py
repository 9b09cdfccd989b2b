"""A DDP communication hook: gradients are averaged in the network, beside a Gloo or NCCL world.

No `from __future__ import annotations` here: DDP compares the hook's annotations as objects.
"""

from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, PrefixStore
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import _get_default_store, default_pg_timeout

from inagg_host.counters import Counters

from .inner import ArrayGroup
from .job import GroupJob
from .tracing import span

HOOK = "inagg::hook"


class InaggState:
    """The state of `inagg_hook`: a job on the switch.

        model = DistributedDataParallel(model)
        model.register_comm_hook(InaggState(switch="10.0.0.1:47100"), inagg_hook)

    It can be pickled into a checkpoint, and then holds what it was configured with, the secret excepted; neither
    process group, job, sockets nor threads. A state that was restored uses the default group, unless `process_group` is
    set, and joins a job of its own with its first bucket. There is nothing else to restore: no error feedback, and
    rounding noise depends on the job's seed and block numbers, which begin anew. Noise of a given ``seed`` thus repeats
    what it was at the beginning, for other gradients.
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, timeout: timedelta = default_pg_timeout, **options: Any
    ) -> None:
        """All ranks of ``process_group`` (None: of the default group) must do this at the same time. ``timeout``: how
        long an operation may take. ``options``: as `Options`. Raises `ConfigError` or `AllReduceError`.
        """
        self.process_group, self.timeout, self.options = process_group, timeout, options
        self._job: GroupJob | None = None
        self.job()

    def group(self) -> dist.ProcessGroup:
        """The process group whose ranks share the gradients."""
        group = dist.group.WORLD if self.process_group is None else self.process_group
        assert group is not None, "call torch.distributed.init_process_group first"
        return group

    def job(self) -> GroupJob:
        """The job, joined."""
        if self._job is None:
            group = self.group()
            self._job = GroupJob(
                self.options, group.rank(), group.size(), self.timeout, "ddp", self._agree, self._spare
            )
        if self._job.workers > 1:
            self._job.join()
        return self._job

    def _agree(self, text: str) -> str:
        texts = [text]
        dist.broadcast_object_list(texts, group=self.group(), group_src=0)
        return texts[0]

    def _spare(self, name: str) -> ArrayGroup:
        group = self.group()
        store = PrefixStore(f"{name}/", _get_default_store())
        return ArrayGroup(store, group.rank(), group.size(), self.timeout)

    @property
    def counters(self) -> Counters:
        """What this rank has done, brought up to date."""
        return Counters() if self._job is None else self._job.counters

    def close(self) -> None:
        """Leave the job; happens at the exit of the process otherwise. No error if called twice."""
        if self._job is not None:
            self._job.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        options = {name: value for name, value in self.options.items() if name != "secret"}
        return {"timeout": self.timeout, "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group, self._job = None, None
        self.timeout, self.options = state["timeout"], state["options"]


def inagg_hook(state: InaggState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks, in place: see `InaggState`.

    Buckets that the switch does not take (``min_bytes``, types other than floats) are averaged by the process group.
    """
    tensor, job = bucket.buffer(), state.job()
    with span(HOOK):
        why_not = job.why_not(tensor, ReduceOp.AVG)
        if why_not is None:
            work: dist.Work = job.sum(tensor, ReduceOp.AVG)
        else:
            job.inner[why_not] += 1
            work = state.group().allreduce([tensor.div_(job.workers)])
        return work.get_future().then(lambda done: done.value()[0])
