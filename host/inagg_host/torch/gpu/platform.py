"""Means to drive a device: streams, functions that are called by address, and kernels."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from inagg_host.codec import Job
from inagg_host.codec.launches import NAMES, Calls

from . import driver
from .stream import DeviceStream, on_device

log = logging.getLogger("inagg")


@cache
def warn_of_copies(why: str) -> None:
    """Say once for each reason that a device does not encode. Each process group has a job, which would repeat it."""
    log.warning("CUDA tensors are copied to the host, and encoded there, with the same bits: %s", why)


def lacking() -> Mapping[str, str]:
    """Return what Triton needs to launch a kernel and does not find here, each with the package of Debian and Ubuntu
    that has it. Triton needs them once: it keeps what it compiles."""
    compiler = os.environ.get("CC")
    # As Triton itself looks for them: a CC that is set is used as it is, and Debian's own scheme has no headers.
    compilers = ("gcc", "clang") if compiler is None else (compiler,)
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    missing = {}
    if not any(map(shutil.which, compilers)):
        missing["C compiler" if compiler is None else f"C compiler {compiler} (CC)"] = "gcc"
    if not (Path(sysconfig.get_path("include", scheme)) / "Python.h").exists():
        missing["Python.h"] = "python3-dev"
    return missing


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
    """Platform of one device."""

    device: torch.device
    calls: Calls
    copied_bytes: int
    """A tensor of no more is copied as it is: see `inagg_host.torch.cuda`."""

    def can_encode(self) -> bool:
        """Whether there are kernels. If not, it says so."""

    def here(self) -> AbstractContextManager[None]:
        """Have what is launched in the block be for this device."""

    def stream(self) -> DeviceStream:
        """A stream of our own."""

    def kernels(self, job: Job, mean: bool) -> Kernels:
        """Compiled, and run once. ``mean``: sums are divided. Raises what says why they cannot be launched here."""

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
        if importlib.util.find_spec("triton") is not None:
            return True
        warn_of_copies("there is no Triton here (pip install triton)")
        return False

    def here(self) -> AbstractContextManager[None]:
        return on_device(self.device)

    def stream(self) -> DeviceStream:
        return DeviceStream(self.device)

    def kernels(self, job: Job, mean: bool) -> Kernels:
        try:
            # Triton takes a second to import.
            kernels = importlib.import_module("inagg_host.torch.gpu.triton_kernels")
            loaded: Kernels = kernels.load(job, self.device, mean)
        except Exception as error:
            if not (missing := lacking()):
                raise
            # Of a header that is missing Triton says only that a command has failed.
            raise RuntimeError(
                f"{error} (no {' and no '.join(missing)} here, which Triton needs: apt-get install "
                f"{' '.join(missing.values())}, or what has them elsewhere)"
            ) from error
        return loaded

    def check(self, failed: int) -> None:
        """Raise `DriverError`: see `Platform.check`."""
        if failed != 0:
            raise driver.DriverError(NAMES[failed & 3], failed >> 2)


PLATFORMS: Mapping[str, Callable[[torch.device], Platform]] = {"cuda": Cuda}
"""Platforms by type of device."""
