"""What releases of torch call the same operation: "single" since 2.13, and "tensor" or "base" before."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import ProcessGroup


def first_of(module: Any, *names: str) -> Any:
    """The first of ``names`` that ``module`` has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


reduce_scatter_single: Any = first_of(dist, "reduce_scatter_single", "reduce_scatter_tensor")
all_gather_single: Any = first_of(dist, "all_gather_single", "all_gather_into_tensor")

IS_OLD = not hasattr(ProcessGroup, "all_gather_single")
"""Before torch 2.13: then Gloo has no means, no reduce-scatter of lists and no all-to-all of lists in some releases."""
new_gloo_only = pytest.mark.skipif(IS_OLD, reason="Gloo cannot do this before torch 2.13")

ALL_GATHER = "_allgather_base" if IS_OLD else "all_gather_single"
"""What a group counts it under."""

SCATTER_COALESCED = "reduce_scatter_tensor_coalesced" if IS_OLD else "reduce_scatter_single_coalesced"
"""The method of process groups that reduce-scatters several tensors."""
