"""Kernels for tensors on a device: in Triton for CUDA, or as plain torch operations for the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import cache
from types import ModuleType

import torch

log = logging.getLogger("inagg")

__all__ = ["can_encode", "kernels_for"]


def can_encode(device: torch.device) -> bool:
    """Whether there are kernels for ``device``: Triton comes with the CUDA builds of torch."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is not None:
        return True
    log.warning("no Triton here: CUDA tensors are copied to the host, and encoded there")
    return False


def kernels_for(device: torch.device) -> ModuleType:
    """The module that has the kernels for ``device``."""
    return _load(device.type == "cuda")


@cache
def _load(cuda: bool) -> ModuleType:
    # Triton takes a second to import.
    return importlib.import_module(f"inagg_host.torch.gpu.{'triton_kernels' if cuda else 'ops'}")
