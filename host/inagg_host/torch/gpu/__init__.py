"""Kernels for tensors on a device: in Triton, or as plain torch operations where there is no Triton."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import cache
from types import ModuleType

import torch

log = logging.getLogger("inagg")

__all__ = ["kernels_for"]


def kernels_for(device: torch.device) -> ModuleType:
    """The module that has the kernels for ``device``: `triton_kernels` for CUDA, if Triton is there, else `ops`."""
    return _load(device.type == "cuda")


@cache
def _load(cuda: bool) -> ModuleType:
    # Triton comes with the CUDA builds of torch, and takes a second to import.
    if cuda and importlib.util.find_spec("triton") is not None:
        return importlib.import_module("inagg_host.torch.gpu.triton_kernels")
    if cuda:
        log.warning(
            "no Triton here: CUDA tensors are encoded by torch operations, which pass over them dozens of times"
        )
    return importlib.import_module("inagg_host.torch.gpu.ops")
