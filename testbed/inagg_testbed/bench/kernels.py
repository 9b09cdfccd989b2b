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
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from inagg_host.codec import ALL_GOOD, Job
from inagg_wire.formats import FORMATS, JobFormat, job_format
from inagg_wire.layout import HEADER_BYTES, Op
from inagg_wire.payload import pack
from inagg_wire.reencode import result_codes
from inagg_wire.scale import FloatType

from ..kernel_calls import Call
from ..result_setup import setup

RING_DATAGRAMS = 256
SEED = 1


@dataclass(frozen=True, slots=True)
class KernelRate:
    """One kernel's rate; a line of `inagg bench kernels --json`."""

    kernel: str
    """absmax (to scale bytes, both rounds' if there are two, and to drafts), encode, decode, or copy itself."""
    format: str
    float_type: str
    elements: int
    median_s: float
    elements_per_s: float
    bytes_per_s: float
    """Of floats, read or written."""
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


def measure(subject: Subject, runs: int) -> tuple[KernelRate, KernelRate]:
    """The rates of a kernel and of copying its floats, taken in turns."""
    values, there = subject.values, np.empty_like(subject.values)
    subject.run()
    np.copyto(there, values)
    kernel_s, copy_s = [], []
    for _ in range(runs):
        copy_s.append(timed(lambda: np.copyto(there, values)))
        kernel_s.append(timed(subject.run))
    copying = statistics.median(copy_s)

    def rate(kernel: str, median_s: float) -> KernelRate:
        return KernelRate(
            kernel=kernel,
            format=subject.job.format.name,
            float_type=subject.job.float_type.name.lower(),
            elements=values.size,
            median_s=median_s,
            elements_per_s=values.size / median_s,
            bytes_per_s=values.nbytes / median_s,
            ratio_to_copy=copying / median_s,
            runs=runs,
        )

    return rate(subject.kernel, statistics.median(kernel_s)), rate("copy", copying)


def measure_all(
    formats: Sequence[JobFormat],
    float_types: Sequence[FloatType],
    *,
    workers: int,
    elements: int,
    batch_datagrams: int,
    runs: int,
) -> Iterator[KernelRate]:
    """All kernels of all formats: for each, its rate and that of the copy beside it."""
    for float_type in float_types:
        values = make_values(elements, float_type)
        for fmt in formats:
            job = Job(fmt, workers, 0, fmt.max_lanes(workers), SEED, float_type)
            for subject in subjects(job, values, batch_datagrams):
                yield from measure(subject, runs)


def show(rates: Iterable[KernelRate]) -> None:
    """A table, for people."""
    from ..tables import console, print_table

    waiting = iter(rates)
    rows = [
        (
            rate.float_type,
            rate.format,
            rate.kernel,
            f"{rate.elements_per_s / 1e6:,.0f}",
            f"{rate.bytes_per_s / 1e9:.1f}",
            f"{copy.bytes_per_s / 1e9:.1f}",
            f"{rate.ratio_to_copy:.2f}",
        )
        for rate, copy in zip(waiting, waiting, strict=True)
    ]
    title = "one core, or the GPU; copy (GB/s) and ratio are to a copy of the same floats, in turns"
    columns = ("floats", "format", "kernel", "M floats/s", "GB/s", "copy", "ratio")
    print_table(console(), title, columns, rows, keys=3, left=columns[:3])


@click.command()
@click.option(
    "--format", "names", multiple=True, type=click.Choice(list(FORMATS)), help="Only these formats (repeatable)."
)
@click.option(
    "--float-type",
    "types",
    multiple=True,
    type=click.Choice([t.name.lower() for t in FloatType]),
    help="Only these types of floats (repeatable).",
)
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1, 32), help="Workers of the job.")
@click.option(
    "--elements",
    default=1 << 24,
    show_default=True,
    type=click.IntRange(min=1),
    help="Floats of the array. The default does not fit a cache; 262144 fit one.",
)
@click.option(
    "--batch",
    default=RING_DATAGRAMS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Datagrams that one call takes.",
)
@click.option("--runs", default=7, show_default=True, type=click.IntRange(min=1), help="Runs; the median counts.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Only this.  [default: the CPU, and the GPU if there is one]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, of the kernels and of copy.")
def kernels(
    names: tuple[str, ...], types: tuple[str, ...], workers: int, elements: int, batch: int, runs: int,
    device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the host's kernels against memory copy: on one core, and on the GPU if there is one.

    Absmax finds the scale bytes (on the CPU, of nat8 and float32, it also drafts the codes), encode makes contributions
    of floats, and decode makes floats of results.
    """
    from . import cuda, kernels_gpu

    if device == "cuda":
        cuda.require()
    formats = [job_format(name) for name in names or FORMATS]
    float_types = [FloatType[name.upper()] for name in types or ("float32", "bfloat16", "float16", "float64")]
    rates: Iterator[KernelRate] = iter(())
    if device != "cuda":
        rates = measure_all(formats, float_types, workers=workers, elements=elements, batch_datagrams=batch, runs=runs)
    if device is None and (why_not := cuda.why_not()) is not None:
        click.echo(f"SKIPPED the kernels of the GPU: {why_not}", err=True)
    elif device != "cpu":
        import torch

        if importlib.util.find_spec("triton") is None:
            raise click.ClickException("there is no Triton here, which comes with the CUDA builds of PyTorch")
        kernels = importlib.import_module("inagg_host.torch.gpu.triton_kernels")
        here = torch.device("cuda", torch.cuda.current_device())
        on_gpu = kernels_gpu.measure_all(
            formats, float_types, workers=workers, elements=elements, runs=runs, device=here, kernels=kernels
        )
        rates = itertools.chain(rates, on_gpu)
    if not as_json:
        show(rates)
        return
    for rate in rates:
        click.echo(json.dumps({"bench": "kernels"} | asdict(rate) | setup()))
