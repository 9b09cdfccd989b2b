"""How fast the host's kernels are on one core, beside a plain copy of the same floats.

A kernel and `numpy.copyto` of its float array to another run in turns, and their medians are compared. Times are CPU
times of the thread that runs them, which are the times on the clock where nobody else wants the core.

The floats are one large array; encode writes datagrams into a ring of buffers that stays in the cache, as the engine's
does, and decode reads from one. A call has a microsecond of its own, which ``--batch 44`` shows: so many datagrams the
engine encodes at a time. Of float32 and nat8, absmax makes drafts of the codes, too, which are then finished; encode is
of blocks that have none, and does both.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from inagg_host.codec import ALL_GOOD, Job
from inagg_switch.cli.sections import Whole
from inagg_wire.formats import CHILDREN_MAX, FORMATS, JobFormat, job_format
from inagg_wire.layout import HEADER_BYTES, Op
from inagg_wire.payload import pack
from inagg_wire.reencode import result_codes
from inagg_wire.scale import FloatType

from ..kernel_calls import Call
from ..option_types import formats_option, runs_option
from ..progress import Doing
from .results import Bars, Column, Table, output_options, show, write_report

RING_DATAGRAMS = 256
SEED = 1
KERNELS = 3
"""Number of kernels that `subjects` gives, here and on a GPU."""


@dataclass(frozen=True, slots=True)
class KernelRate:
    """One kernel's rate; a line of `inagg bench kernels --json`."""

    kernel: str
    """absmax (to scale bytes, both rounds' if there are two, and to drafts), encode or decode; on a GPU with "gpu-"."""
    format: str
    float_type: str
    elements: int
    median_s: float
    elements_per_s: float
    bytes_per_s: float
    """Bytes of floats, read or written."""
    copy_bytes_per_s: float
    """Rate of a plain copy of the same floats."""
    ratio_to_copy: float
    runs: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel over all elements, ready to be timed."""

    kernel: str
    job: Job
    values: NDArray[Any]
    run: Callable[[], object]


def make_values(elements: int, float_type: FloatType) -> NDArray[Any]:
    """Normally distributed, as gradients about are; from a few million numbers, repeated."""
    drawn = np.random.default_rng(SEED).standard_normal(min(elements, 1 << 20), np.float32)
    values = np.resize(drawn, elements)
    if float_type is FloatType.BFLOAT16:
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(float_type.dtype)


def subjects(job: Job, values: NDArray[Any], batch_datagrams: int) -> Iterator[Subject]:
    """The three kernels of a job over ``values``, compiled."""
    blocks = job.blocks(values.size)
    batch = min(batch_datagrams, blocks)
    rows = -(-RING_DATAGRAMS // batch) * batch  # so that no batch goes around
    batches = [(at, min(at + batch, blocks)) for at in range(0, blocks, batch)]
    ring = np.zeros((rows, job.datagram_bytes), np.uint8)
    agreeing = Call(job, values, ring=ring)
    scales, refinements = agreeing.agree()
    yield Subject("absmax", job, values, agreeing.agree)

    sending = Call(job, values, scales, refinements, ring=ring)

    def encode() -> None:
        for begin, end in batches:
            if sending.encode(begin, begin, end - begin, begin % rows) != ALL_GOOD:
                raise RuntimeError("values beyond their own scale")

    yield Subject("encode", job, values, encode)

    results, numbers, out = np.zeros((rows, job.result_bytes), np.uint8), np.arange(blocks), np.empty_like(values)
    results[:, HEADER_BYTES:] = make_result(job)
    receiving = Call(job, out, scales, refinements, data=results, places=numbers % rows, numbers=numbers)

    def decode() -> None:
        for begin, end in batches:
            if receiving.decode(begin, end) != 0:
                raise RuntimeError("codes that name no level")

    yield Subject("decode", job, out, decode)


def make_result(job: Job) -> NDArray[np.uint8]:
    """The payload of a result with sums of all sizes."""
    rng = np.random.default_rng(SEED)
    largest = job.workers * job.format.top(job.workers)
    sums = np.exp2(rng.uniform(0, np.log2(largest), job.lanes)).astype(np.int64) * rng.choice([-1, 1], job.lanes)
    codes = result_codes(Op.SUM, job.format, job.workers, sums, np.zeros(job.lanes, np.uint32))
    return np.frombuffer(pack(job.format.down(job.workers), codes), np.uint8)


def timed(run: Callable[[], object]) -> float:
    started_s = time.thread_time()
    run()
    return time.thread_time() - started_s


def measure(subject: Subject, runs: int) -> KernelRate:
    """The rates of a kernel and of copying its floats, taken in turns."""
    values, there = subject.values, np.empty_like(subject.values)
    subject.run()
    np.copyto(there, values)
    kernel_s, copy_s = [], []
    for _ in range(runs):
        copy_s.append(timed(lambda: np.copyto(there, values)))
        kernel_s.append(timed(subject.run))
    return rate_of(subject.kernel, subject.job, values.size, kernel_s, copy_s)


def rate_of(kernel: str, job: Job, elements: int, kernel_s: Sequence[float], copy_s: Sequence[float]) -> KernelRate:
    """Rate of a kernel, from the seconds that it and a copy of as many floats took, run by run."""
    median_s, copying_s = statistics.median(kernel_s), statistics.median(copy_s)
    float_bytes = elements * job.float_type.dtype.itemsize
    return KernelRate(
        kernel=kernel,
        format=job.format.name,
        float_type=job.float_type.name.lower(),
        elements=elements,
        median_s=median_s,
        elements_per_s=elements / median_s,
        bytes_per_s=float_bytes / median_s,
        copy_bytes_per_s=float_bytes / copying_s,
        ratio_to_copy=copying_s / median_s,
        runs=len(kernel_s),
    )


def measure_all(
    formats: Sequence[JobFormat],
    float_types: Sequence[FloatType],
    *,
    workers: int,
    elements: int,
    batch_datagrams: int,
    runs: int,
    progress: Doing = lambda _: None,
) -> Iterator[KernelRate]:
    """All kernels of all formats, which ``progress`` is told."""
    for float_type in float_types:
        values = make_values(elements, float_type)
        for fmt in formats:
            job = Job(fmt, workers, 0, fmt.max_lanes(workers), SEED, float_type)
            for subject in subjects(job, values, batch_datagrams):
                progress(f"{float_type.name.lower()}, {fmt.name}, {subject.kernel}")
                yield measure(subject, runs)


COLUMNS: list[Column] = [
    ("floats", lambda r: r["float_type"]),
    ("format", lambda r: r["format"]),
    ("kernel", lambda r: r["kernel"]),
    ("M floats/s", lambda r: f"{r['elements_per_s'] / 1e6:,.0f}"),
    ("GB/s", lambda r: f"{r['bytes_per_s'] / 1e9:.1f}"),
    ("copy", lambda r: f"{r['copy_bytes_per_s'] / 1e9:.1f}"),
    ("ratio", lambda r: f"{r['ratio_to_copy']:.2f}"),
]
TABLE = Table(
    "one core, or the GPU; copy (GB/s) and ratio are to a copy of the same floats, in turns",
    COLUMNS,
    Bars("million floats/s", lambda r: r["elements_per_s"] / 1e6),
    keys=3,
    left=("floats", "format", "kernel"),
)


@click.command()
@formats_option("Only these formats (repeatable)", ())
@click.option(
    "--float-type",
    "types",
    multiple=True,
    type=click.Choice([t.name.lower() for t in FloatType]),
    help="Only these types of floats (repeatable).",
)
@click.option("--workers", default=4, show_default=True, type=Whole(1, CHILDREN_MAX), help="How many the job has.")
@click.option(
    "--elements",
    default=1 << 24,
    show_default=True,
    type=Whole(1),
    help="Floats of the array. The default does not fit a cache; 262144 fit one.",
)
@click.option(
    "--batch",
    default=RING_DATAGRAMS,
    show_default=True,
    type=Whole(1),
    help="Datagrams that one call takes.",
)
@runs_option(7)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where, and nowhere else.  [default: the CPU, and the GPU if there is one]",
)
@output_options
def kernels(
    formats: tuple[str, ...], types: tuple[str, ...], workers: int, elements: int, batch: int, runs: int,
    device: str | None, report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the host's kernels against memory copy: on one core, and on the GPU if there is one.

    Absmax finds the scale bytes (on the CPU, of nat8 and float32, it also drafts the codes), encode makes contributions
    of floats, and decode makes floats of results.
    """
    from . import cuda

    if device == "cuda":
        cuda.require_gpu()
    jobs = [job_format(name) for name in formats or FORMATS]
    float_types = [FloatType[name.upper()] for name in types or ("float32", "bfloat16", "float16", "float64")]
    options: dict[str, Any] = {"workers": workers, "elements": elements, "runs": runs}
    measures: list[Callable[..., Iterator[KernelRate]]] = []
    if device != "cuda":
        measures.append(partial(measure_all, jobs, float_types, batch_datagrams=batch, **options))
    if device is None and (why_not := cuda.why_not()) is not None:
        click.echo(f"SKIPPED the kernels of the GPU: {why_not}", err=True)
    elif device != "cpu":
        measures.append(partial(_on_gpu(), jobs, float_types, **options))

    def lines(progress: Doing) -> Iterator[dict[str, Any]]:
        for measure in measures:
            for rate in measure(progress=progress):
                yield {"bench": "kernels"} | asdict(rate)

    total = len(measures) * len(float_types) * len(jobs) * KERNELS
    measured = show(lines, TABLE, total=total, as_json=as_json)
    write_report(report, measured, TABLE, as_json=as_json)


def _on_gpu() -> Callable[..., Iterator[KernelRate]]:
    """Return `kernels_gpu.measure_all` for this process's GPU. Raises click.ClickException if there is no Triton."""
    import torch

    from . import kernels_gpu

    if importlib.util.find_spec("triton") is None:
        raise click.ClickException("there is no Triton here, which comes with the CUDA builds of PyTorch")
    here = torch.device("cuda", torch.cuda.current_device())
    triton = importlib.import_module("inagg_host.torch.gpu.triton_kernels")
    return partial(kernels_gpu.measure_all, device=here, kernels=triton)
