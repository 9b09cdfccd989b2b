"""How fast the kernels are on a GPU, beside a copy of the same floats within its memory.

As `kernels`: a kernel and the copy run in turns, and medians are compared. Times are the device's own, between events
of its stream. Codes stay on the device; what it takes to bring them to the host is in `inagg bench allreduce`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from inagg_host.codec import Job
from inagg_wire.formats import JobFormat
from inagg_wire.scale import FloatType

from ..kernel_calls import Call
from ..progress import Doing
from .kernels import SEED, KernelRate, make_result, make_values, rate_of

if TYPE_CHECKING:
    import torch


REPEATED = 10
"""Runs of a kernel that are timed at once: to launch one takes as long as it runs."""


def repeated(device: torch.device, run: Callable[[], object]) -> Callable[[], object]:
    """``run`` `REPEATED` times, launched at once: as a graph. (The CPU does it as often.)"""

    def all_of_them() -> None:
        for _ in range(REPEATED):
            run()

    if device.type != "cuda":
        return all_of_them
    import torch

    run()  # compiles it
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of_them()
    return graph.replay


def timed(device: torch.device, run: Callable[[], object]) -> float:
    """Seconds that ``run`` takes on the device."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        run()
        return time.perf_counter() - start_s
    import torch

    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    start, end = make(enable_timing=True), make(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def subjects(
    job: Job, values: Any, device: torch.device, kernels: Any
) -> Iterator[tuple[str, torch.Tensor, Callable[[], object]]]:
    """Yield each kernel: its name, the floats that it goes over, and its call, for a tensor on the device."""
    import torch

    from inagg_host.codec.staged import TIES
    from inagg_host.torch.gpu.floats import FLOATS

    from ..kernel_calls import make_table

    dtype = getattr(torch, job.float_type.name.lower())
    tensor = torch.from_numpy(values.view(f"i{values.itemsize}")).view(dtype).to(device)
    blocks = job.blocks(values.size)
    found = torch.empty(blocks, dtype=FLOATS[values.itemsize], device=device)
    yield "absmax", tensor, lambda: kernels.largest(tensor, job.lanes, found)

    scales, refinements = Call(job, values).agree()

    def table(fraction_bits: int) -> torch.Tensor:
        made = make_table(job, scales, refinements, fraction_bits, np.arange(blocks))
        return torch.from_numpy(made).to(device)

    sending = table(job.for_encode.fraction_bits)
    codes = torch.empty(blocks * job.for_encode.payload_bytes, dtype=torch.uint8, device=device)
    flags = torch.empty(blocks * kernels.flag_bytes(job), dtype=torch.uint8, device=device)
    ties = torch.zeros(2 * TIES, dtype=torch.int64, device=device)
    tied = torch.zeros(1, dtype=torch.int32, device=device)
    yield "encode", tensor, lambda: kernels.encode(job, tensor, sending, codes, flags, ties, tied, 0, blocks)

    receiving = table(job.for_decode.fraction_bits)
    results = torch.from_numpy(make_result(job).copy()).to(device).repeat(blocks)
    out = torch.empty_like(tensor.view(FLOATS[tensor.element_size()])).view(dtype)
    counts = torch.empty(blocks * kernels.count_words(job), dtype=torch.int32, device=device)
    yield "decode", out, lambda: kernels.decode(job, results, receiving, out, counts, 0, blocks)


def measure_all(
    formats: Sequence[JobFormat],
    float_types: Sequence[FloatType],
    *,
    workers: int,
    elements: int,
    runs: int,
    device: torch.device,
    kernels: Any,
    progress: Doing = lambda _: None,
) -> Iterator[KernelRate]:
    """All kernels of all formats, which ``progress`` is told. Names begin with "gpu-". ``kernels``: a module as
    `inagg_host.torch.gpu.triton_kernels`."""
    for float_type in float_types:
        values = make_values(elements, float_type)
        for fmt in formats:
            job = Job(fmt, workers, 0, fmt.max_lanes(workers), SEED, float_type)
            for name, tensor, run in subjects(job, values, device, kernels):
                progress(f"{float_type.name.lower()}, {fmt.name}, gpu-{name}")
                yield measure(name, job, tensor, run, runs, device)


def measure(
    name: str, job: Job, tensor: torch.Tensor, run: Callable[[], object], runs: int, device: torch.device
) -> KernelRate:
    """The rates of a kernel and of copying its floats, taken in turns."""
    there = tensor.clone()
    kernel, copy = repeated(device, run), repeated(device, lambda: there.copy_(tensor))
    kernel_s, copy_s = [], []
    for _ in range(runs):
        copy_s.append(timed(device, copy) / REPEATED)
        kernel_s.append(timed(device, kernel) / REPEATED)
    return rate_of(f"gpu-{name}", job, tensor.numel(), kernel_s, copy_s)
