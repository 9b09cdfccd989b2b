"""What releases of torch call the same operation: "single" since 2.13, and "tensor" or "base" before."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional


def first_of(module: Any, *names: str) -> Any:
    """The first of ``names`` that ``module`` has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


reduce_scatter_single: Any = first_of(dist, "reduce_scatter_single", "reduce_scatter_tensor")
all_gather_single: Any = first_of(dist, "all_gather_single", "all_gather_into_tensor")
functional_reduce_scatter: Any = first_of(functional, "reduce_scatter_single", "reduce_scatter_tensor")
functional_all_gather: Any = first_of(functional, "all_gather_single", "all_gather_tensor")

# What a group counts them under.
IS_OLD = not hasattr(ProcessGroup, "all_gather_single")
ALL_GATHER = "_allgather_base" if IS_OLD else "all_gather_single"
ALL_GATHER_COALESCED = "allgather_into_tensor_coalesced" if IS_OLD else "all_gather_single_coalesced"
ALL_TO_ALL = "alltoall_base" if IS_OLD else "all_to_all_single"
