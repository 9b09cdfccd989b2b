"""Common parts of the benchmarks on a GPU: whether there is one, and how fast memory is copied there."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from inagg.extras import install, require

if TYPE_CHECKING:
    import torch

RUNS = 7
COPIED_BYTES = 64 << 20

device_option = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
    help="Where tensors are. Ranks take the GPUs in turn.",
)  # fmt: skip


def why_not() -> str | None:
    """Why there is no GPU to measure, None if there is one."""
    if importlib.util.find_spec("torch") is None:
        return f"no torch; run: {install('torch')}"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return None


def device_of(rank: int) -> torch.device:
    """The GPU of a rank, which becomes that of the process."""
    import torch

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def require_gpu() -> None:
    """Raise an error of the command line, exit status 1, if there is no GPU. Raises `MissingExtra` without torch."""
    require("torch")
    if (reason := why_not()) is not None:
        raise click.ClickException(f"--device cuda: {reason}")


def copy_bandwidths() -> dict[str, float]:
    """Bytes a second: copied within the GPU's memory, from pinned memory of the host to it, and back."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    there, other = (torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    here = torch.zeros(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    ways: dict[str, Callable[[], object]] = {
        "within": lambda: other.copy_(there),
        "to_device": lambda: there.copy_(here, non_blocking=True),
        "to_host": lambda: here.copy_(there, non_blocking=True),
    }
    found = {}
    for name, copy in ways.items():
        seconds = []
        for _ in range(RUNS):
            torch.cuda.synchronize(device)
            start_s = time.perf_counter()
            copy()
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start_s)
        found[name] = COPIED_BYTES / statistics.median(seconds)
    return found
