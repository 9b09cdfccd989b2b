"""Predictions for a training, and what they mean for who asks. Plain functions: no measurement, no output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inagg_wire.formats import CHILDREN_MAX

from ..profiles.compute import Compute
from .model import Cost, Costs, Limit, Placement
from .racks import Racks, flat_cost, for_trees_only, tree_cost
from .step import StepTime, step_time
from .wire import GLOO

WORTH_IT = 0.05
"""Less gain than this share of a step is not worth a switch, and less than what a prediction can tell."""
SLOWER = 0.01
DEFAULT, EXACT = "nat8", "fix32"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step with one system. ``limit``: what communication spends its time on."""

    system: str
    time: StepTime
    limit: Limit
    reduction: float | None
    """How much less time than with Gloo, 0 to 1, negative if more; None for Gloo itself."""
    tree: bool = False
    """Through a switch in each rack, not one behind them."""

    @property
    def name(self) -> str:
        """Name for people."""
        return f"{self.system} (tree)" if self.tree else self.system


def predict(
    compute: Compute, costs: Mapping[str, Costs], systems: Sequence[str], workers: int, bits_per_s: float,
    placement: Placement, racks: Racks | None = None,
) -> list[Prediction]:  # fmt: skip
    """Predictions for Gloo, first, and for ``systems``. ``bits_per_s``: of each worker's link; 0: without a rate.

    With ``racks`` through one switch behind the trunks, where one can serve so many workers, and through a tree.
    Raises KeyError for a system without constants, ValueError for a format that has no blocks for a tree.
    """
    found: list[Prediction] = []

    def add(system: str, cost: Cost, tree: bool = False) -> None:
        time = step_time(compute, cost.seconds)
        largest = max((elements for elements, _ in compute.buckets), default=0)
        reduction = 1 - time.step_s / found[0].time.step_s if found else None
        found.append(Prediction(system, time, cost.limit_of(largest), reduction, tree))

    for system in (GLOO, *(s for s in systems if s != GLOO)):
        if system == GLOO or (workers <= CHILDREN_MAX and not for_trees_only(system)):
            add(system, flat_cost(costs, system, workers, bits_per_s, placement, racks))
        if system != GLOO and racks is not None:
            add(system, tree_cost(costs, system, workers, bits_per_s, placement, racks), tree=True)
    return found


def advice(predictions: Sequence[Prediction]) -> list[str]:
    """Sentences: whether to use it, in which format, and why not where it will not help.

    ``predictions`` as `predict` returns them.
    """
    gloo, others = predictions[0], predictions[1:]
    if not others:
        return ["Name a format to compare with Gloo."]
    exposed = gloo.time.exposed_s / gloo.time.step_s
    if exposed < WORTH_IT:
        return [
            f"It will not help: computation hides Gloo's communication but for {exposed:.1%} of a step. Faster "
            "computation, smaller batches or a slower link would change that."
        ]
    best = min(others, key=lambda p: p.time.step_s)
    assert best.reduction is not None
    if best.reduction < WORTH_IT:
        return [f"It will not help: {best.name}, the fastest, {_gain(best)}. {_why_not(best)}"]
    lines = [f"It will help: {best.name} {_gain(best)}."]
    by_name: dict[str, Prediction] = {}
    for p in sorted(others, key=lambda p: p.time.step_s):
        by_name.setdefault(p.system, p)
    if DEFAULT in by_name and best.system != DEFAULT:
        lines.append(f"The default, {by_name[DEFAULT].name}, {_gain(by_name[DEFAULT])}, and its noise is less.")
    exact = by_name.get(EXACT, best)
    if exact is not best and (exact.reduction or 0.0) > WORTH_IT:
        lines.append(f"Adding in the network alone, without fewer bytes for a number: {exact.name} {_gain(exact)}.")
    slower = [p.name for p in others if p.reduction is not None and p.reduction < -SLOWER]
    if slower:
        lines.append(f"Slower than Gloo: {', '.join(slower)}.")
    if best.limit in ("CPU", "switch CPU"):
        whose = "the switch's processor" if best.limit == "switch CPU" else "the hosts' processors"
        lines.append(
            f"With it, {whose} would be the limit and no longer the link: a faster link would not help further."
        )
    return lines


def _gain(prediction: Prediction) -> str:
    reduction = prediction.reduction or 0.0
    if abs(reduction) < 0.005:
        return "takes as long as Gloo"
    return f"takes {abs(reduction):.0%} {'less' if reduction > 0 else 'more'} time for a step than Gloo"


def _why_not(prediction: Prediction) -> str:
    return {
        "latency": "The tensors are so small that latency counts, not bytes.",
        "trunk": "The trunks of the racks are the limit with both, and carry no less than with Gloo.",
        "link": "The link is the limit with both, and the format is not smaller than what Gloo sends.",
        "CPU": "The hosts' processors are the limit and not the link, so fewer bytes do not help.",
        "switch CPU": "The switch's processor is the limit: more shards or a hardware switch would help.",
    }[prediction.limit]
