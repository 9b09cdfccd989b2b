"""A DDP communication hook: gradients are averaged in the network, beside a Gloo or NCCL world.

No `from __future__ import annotations` here: DDP compares the hook's annotations as objects.
"""

import torch
from torch._C._distributed_c10d import GradBucket

from .eager import eager
from .hook_state import InaggState
from .tracing import ALL_REDUCE, span, traced
from .work import failed

HOOK = "inagg::hook"


@eager
def inagg_hook(state: InaggState, bucket: GradBucket, *rest: object) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks, in place: see `InaggState`.

    Buckets that the switch does not take (``min_bytes``, types other than floats) are averaged by the process group.

    Raises TypeError where there are no buckets, as whoever calls hooks then drops the futures that they return, errors
    and all: `FullyShardedDataParallel`, which gives a gradient, and where it shards them ``rest``, the tensor for this
    rank's part; and a DDP with ``torch._dynamo.config.optimize_ddp = "python_reducer"``, which gives each gradient.
    """
    if not isinstance(state, InaggState):
        raise TypeError(
            f"inagg_hook got {state!r} for its state: register it as model.register_comm_hook(InaggState(), inagg_hook)"
        )
    given: object = bucket
    if isinstance(given, torch.Tensor) or rest:
        raise TypeError(
            "inagg_hook averages buckets of DistributedDataParallel, and FullyShardedDataParallel has none: use "
            'init_process_group("inagg") and no hook'
        )
    if isinstance(given, tuple):
        raise TypeError(
            'inagg_hook averages buckets of DDP, and torch._dynamo.config.optimize_ddp = "python_reducer" has none: '
            'set another before the model is wrapped, or use backend="inagg" without a hook'
        )
    with span(HOOK):
        return traced(ALL_REDUCE, lambda: _averaged(state, bucket))


def _averaged(state: InaggState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    try:
        work = state.average(bucket)
    except Exception as error:  # whatever it is: what is raised here, DDP's reducer does not get over
        work = failed(error)
    return work.get_future().then(lambda done: done.value()[0])
