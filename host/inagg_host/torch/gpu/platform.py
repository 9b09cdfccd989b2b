"""What a device is driven by: streams, functions that are called by address, and kernels."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from inagg_host.codec import Job
from inagg_host.codec.launches import NAMES, Calls

from . import driver
from .lane import Lane, on_device

log = logging.getLogger("inagg")


class Kernel(NamedTuple):
    """One that is compiled. ``programs``: for each block; ``threads``: of a program; ``shared``: bytes of memory that
    these share. ``owner``: what is to be kept as long as it is used."""

    function: int
    programs: int
    threads: int
    shared: int
    owner: object = None


class Kernels(NamedTuple):
    """All of a job."""

    largest: Kernel
    encode: Kernel
    decode: Kernel


class Platform(Protocol):
    """Of one device."""

    device: torch.device
    calls: Calls
    copied_bytes: int
    """A tensor of no more is copied as it is: see `inagg_host.torch.cuda`."""

    def can_encode(self) -> bool:
        """Whether there are kernels. If not, it says so."""

    def here(self) -> AbstractContextManager[None]:
        """What is launched in the block is for this device."""

    def lane(self) -> Lane:
        """A stream of our own."""

    def kernels(self, job: Job, mean: bool) -> Kernels:
        """Compiled, and run once. ``mean``: sums are divided. Raises RuntimeError if they cannot be launched here."""

    def check(self, failed: int) -> None:
        """Raise what `inagg_host.codec.launches.launch` says has gone wrong."""


class Cuda:
    """CUDA's driver, and kernels in Triton, which comes with the CUDA builds of PyTorch."""

    copied_bytes = 1 << 20
    """On an H200, which copies at 54 GB/s, 1 KiB took 0.93 ms so, and 1.12 if the device encoded it; 1 MiB 1.21 to
    1.34, and 1.44; 4 MiB 2.60, and 2.26 to 2.41 (docs/measured.md)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls = Calls(*(driver.address(name) for name in NAMES))

    def can_encode(self) -> bool:
        """As `Platform.can_encode`."""
        if importlib.util.find_spec("triton") is not None:
            return True
        log.warning("no Triton here: CUDA tensors are copied to the host, and encoded there")
        return False

    def here(self) -> AbstractContextManager[None]:
        """As `Platform.here`."""
        return on_device(self.device)

    def lane(self) -> Lane:
        """As `Platform.lane`."""
        return Lane(self.device)

    def kernels(self, job: Job, mean: bool) -> Kernels:
        """As `Platform.kernels`."""
        # Triton takes a second to import.
        loaded: Kernels = importlib.import_module("inagg_host.torch.gpu.triton_kernels").load(job, self.device, mean)
        return loaded

    def check(self, failed: int) -> None:
        """As `Platform.check`: `DriverError`."""
        if failed != 0:
            raise driver.DriverError(NAMES[failed & 3], failed >> 2)


PLATFORMS: Mapping[str, Callable[[torch.device], Platform]] = {"cuda": Cuda}
"""By type of device."""
