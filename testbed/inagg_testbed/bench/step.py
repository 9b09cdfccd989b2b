"""The time of a training step with real networks' gradients: communication measured, computation measured or assumed.

One machine cannot compute for eight workers as eight machines would. So computation is slept through (`step_ranks`), as
long as it was measured to take on this machine alone, or as long as the user says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..advise.wire import bytes_per_element
from ..profiles.compute import Compute, nothing
from ..progress import Doing
from ..topology import LinkSpec
from .step_ranks import GLOO, StepRun, open_step_ranks

ALONE_RUNS = 2
Limit = Literal["computation", "link", "CPU", "latency"]
HIDDEN_SHARE = 0.05
"""Less communication than this share of a step is no limit."""
FULL_SHARE = 0.85
"""A link or a processor that is busy for this share of the time is the limit."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """The steps of one system; a line of `inagg bench step --json`. Times are medians over steps, of the slowest
    rank."""

    model: str
    link: str
    """Link as LinkSpec writes it; "loopback" without namespaces."""
    workers: int
    system: str
    """gloo or inagg."""
    format: str
    elements: int
    buckets: int
    step_s: float
    forward_s: float
    backward_s: float
    exposed_s: float
    """Communication that the backward pass does not hide: step - forward - backward."""
    communication_s: float
    """All buckets one after another, without computation."""
    link_share: float | None
    """The share of the link's rate that communication alone used; None without a rate."""
    cpu_busy: float
    """The share of this machine's cores that was busy during communication alone, whatever with."""
    limit: Limit
    """Cause that a step waits for most, see `limit_of`."""
    wire_bytes_up: float
    """Bytes that a worker sends in a step: see `StepRun`."""
    resent: float
    rtt_s: float
    compute: str
    """Where the time of computation comes from."""
    runs: int
    foreign_load: float
    """The share of the cores that something else used before the first step, 0 to 1."""
    reduction: float | None = None
    """How much less time than with Gloo, 0 to 1; None for Gloo and if it was not measured."""


def limit_of(step_s: float, exposed_s: float, link_share: float | None, cpu_busy: float) -> Limit:
    """Find what a step waits for most, by what was busy."""
    if exposed_s < HIDDEN_SHARE * step_s:
        return "computation"
    if link_share is not None and link_share >= FULL_SHARE:
        return "link"
    return "CPU" if cpu_busy >= FULL_SHARE else "latency"


def make_line(
    model: str, ranks_link: str | None, workers: int, system: str, compute: Compute, step: StepRun, alone: StepRun,
    foreign_load: float,
) -> StepLine:  # fmt: skip
    """Put together what was measured: ``step`` with computation, ``alone`` without."""
    rate = LinkSpec.parse(ranks_link).rate_bits_per_s if ranks_link else 0.0
    wire_s = compute.elements * bytes_per_element(system, workers) * 8 / rate if rate else None
    link_share = wire_s / alone.median_s if wire_s is not None else None
    exposed_s = max(0.0, step.median_s - compute.seconds)
    return StepLine(
        model=model,
        link=str(LinkSpec.parse(ranks_link)) if ranks_link else "loopback",
        workers=workers,
        system=GLOO if system == GLOO else "inagg",
        format="float32" if system == GLOO else system,
        elements=compute.elements,
        buckets=len(compute.buckets),
        step_s=step.median_s,
        forward_s=compute.forward_s,
        backward_s=compute.backward_s,
        exposed_s=exposed_s,
        communication_s=alone.median_s,
        link_share=link_share,
        cpu_busy=alone.cpu_busy,
        limit=limit_of(step.median_s, exposed_s, link_share, alone.cpu_busy),
        wire_bytes_up=step.bytes_up,
        resent=step.resent,
        rtt_s=step.rtt_s,
        compute=compute.source,
        runs=len(step.seconds),
        foreign_load=foreign_load,
    )


def runs_of_model(runs: int, systems: int) -> int:
    """Number of runs of a model that `bench_step` tells of, beside the start of the workers."""
    return systems * (1 + max(ALONE_RUNS, runs))


def bench_step(
    computes: Sequence[tuple[str, Compute]], link: str | None, workers: int, formats: Sequence[str], *, gloo: bool,
    runs: int, progress: Doing = lambda _: None,
) -> Iterator[StepLine]:  # fmt: skip
    """Lines for each model of ``computes`` (its name, its computation): Gloo's first, if it is asked for.

    The systems take turns, step by step, for so many ``runs``. ``progress`` is told what is being measured.
    """
    systems = ([GLOO] if gloo else []) + list(formats)
    progress(f"starting {workers} workers, link {link or 'loopback'}")
    with open_step_ranks(workers, systems, link) as ranks:
        for model, compute in computes:
            bare = nothing([elements for elements, _ in compute.buckets])
            alone: dict[str, list[StepRun]] = {system: [] for system in systems}
            whole: dict[str, list[StepRun]] = {system: [] for system in systems}
            for system in systems:
                progress(f"{model}, {link or 'loopback'}, {workers} workers: warming up {system}")
                ranks.run(system, bare, 1)
            rounds = max(ALONE_RUNS, runs)
            for number in range(rounds):
                for system in systems:
                    progress(
                        f"{model}, {link or 'loopback'}, {workers} workers: {system}, round {number + 1} of {rounds}"
                    )
                    if number < ALONE_RUNS:
                        alone[system].append(ranks.run(system, bare, 1))
                    if number < runs:
                        whole[system].append(ranks.run(system, compute, 1))
            reference_s: float | None = None
            for system in systems:
                step, bare_step = StepRun.together(whole[system]), StepRun.together(alone[system])
                line = make_line(model, link, workers, system, compute, step, bare_step, ranks.foreign_load)
                if system == GLOO:
                    reference_s = line.step_s
                elif reference_s is not None:
                    line = replace(line, reduction=1 - line.step_s / reference_s)
                yield line


def as_line(line: StepLine) -> dict[str, Any]:
    """A line for programs."""
    return {"bench": "step"} | asdict(line)
