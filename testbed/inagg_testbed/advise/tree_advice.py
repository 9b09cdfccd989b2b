"""Whether switches in the racks help, in words."""

from __future__ import annotations

from collections.abc import Sequence

from inagg_wire.formats import job_format

from .predict import DEFAULT, WORTH_IT, Prediction
from .racks import Racks, base_of, flat_trunk_bytes, for_trees_only, pays_from
from .wire import trunk_bytes


def tree_advice(predictions: Sequence[Prediction], workers: int, racks: Racks) -> list[str]:
    """Sentences, of ``predictions`` as `predict` returns them for ``racks``: whether a tree is faster than one switch
    behind the trunks, and why; of the default format if it is there, else of the first; and of those that round again.
    """
    exact = {p.system: p for p in predictions if p.tree and not for_trees_only(p.system)}
    if not exact:
        return []
    chosen = exact.get(DEFAULT) or next(iter(exact.values()))
    flat = next((p for p in predictions if p.system == chosen.system and not p.tree), None)
    lines = [_compared(chosen, flat, workers, racks)]
    for again in (p for p in predictions if for_trees_only(p.system)):
        best = exact.get(base_of(again.system))
        if best is not None and (gain := 1 - again.time.step_s / best.time.step_s) > WORTH_IT:
            lines.append(
                f"Rounding partial sums again ({again.system}) takes {gain:.0%} less than exact ones, with more noise: "
                "each level of switches adds its own."
            )
    return lines


def _compared(tree: Prediction, flat: Prediction | None, workers: int, racks: Racks) -> str:
    fmt, mine = job_format(tree.system), racks.workers_of(workers)
    through_tree = trunk_bytes(fmt, workers)
    if flat is None:
        return f"Only a tree serves {workers} workers: one switch has too few places for them."
    through_flat = flat_trunk_bytes(tree.system, workers, racks)
    gain = 1 - tree.time.step_s / flat.time.step_s
    carry = (
        f"its trunks carry {through_tree:.1f} bytes an element, and those before one switch {through_flat:.1f}, with "
        f"{mine} workers a rack and {tree.system}"
    )
    if gain > WORTH_IT:
        why = "one switch for all would be limited by its processor" if flat.limit == "switch CPU" else carry
        return f"A tree helps: a step takes {gain:.0%} less than through one switch behind the trunks; {why}."
    least = pays_from(fmt, racks)
    enough = "with no number of them" if least is None else f"from {least} on"
    if gain < -WORTH_IT:
        cost = carry if tree.limit == "trunk" else "each all-reduce waits for two switches, one after the other"
        return f"A tree takes {-gain:.0%} more than one switch behind the trunks: {cost}. It pays {enough}."
    if "trunk" not in (flat.limit, tree.limit):
        return "A tree changes little here: the trunks are not the limit."
    return f"A tree changes little here: {carry}. It pays {enough}."
