"""`inagg advise`: does in-network aggregation help a given training? Options in, a table and sentences out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from click.core import ParameterSource

from inagg.extras import require
from inagg_switch.cli.sections import Whole
from inagg_wire.formats import CHILDREN_MAX, FORMATS

from ..bench.results import output_options, print_json
from ..bench.step_command import check_compute, compute_of, compute_options
from ..option_types import LinkRate, formats_option, runs_option
from ..profiles import NAMES, profile
from ..progress import measuring, said
from ..tables import console, print_table, say
from ..testbed.options import check_place
from .model import Placement
from .place import Place, rate_of
from .racks import for_trees_only
from .without import Bound, bounds, compared

if TYPE_CHECKING:
    from ..profiles.compute import Compute
    from .calibrate import Calibration, Network
    from .check import Checked
    from .predict import Prediction

GOOD_ERROR = 0.15
CAPTION = "alone: all communication; exposed: what computation does not hide of it; less: than Gloo"
OF_CHECK, OF_BOTH = {"runs", "report"}, {"calibrate", "as_check", "as_json"}
"""Parameters: what --check takes alone, and what goes with it and with a prediction."""


@click.command()
@click.option("--model", default="resnet50", show_default=True, type=click.Choice(NAMES), help="What is trained.")
@click.option("--link", default="1gbit", show_default=True, type=LinkRate(), help="The network of each worker.")
@click.option("--workers", default=8, show_default=True, type=Whole(2, CHILDREN_MAX**2), help="How many.")
@click.option(
    "--racks",
    default=0,
    type=Whole(0, CHILDREN_MAX),
    metavar="N",
    help="The workers stand in N racks: predict for one switch behind them, and for a switch in each (a tree).",
)
@click.option("--trunk", type=LinkRate(), help="The network of each rack.  [default: as --link]")
@formats_option("Only these formats (repeatable)", ())
@compute_options
@click.option(
    "--placement",
    default="own-machines",
    show_default=True,
    type=click.Choice(get_args(Placement)),
    help="A machine like this one for each worker and the switch, or all on this one, as the testbed has it.",
)
@click.option("--calibrate", is_flag=True, help="Measure this machine again, and keep that instead.")
@click.option(
    "--check",
    "as_check",
    is_flag=True,
    help="Measure ten trainings here and compare (minutes); --runs and --report are for this.",
)
@runs_option(3)
@output_options
def advise(
    model: str, link: str, workers: int, racks: int, trunk: str | None, formats: Sequence[str], batch: int | None,
    compute_ms: float | None, compute_rate: float | None, placement: Placement, calibrate: bool, as_check: bool,
    runs: int, report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Predict the time of a training step with Gloo and through a switch, and say whether it would help.

    The prediction is that of a cost model: a latency for each all-reduce, and for each element the time on the link or
    in the processors, whichever is longer. Its constants are measured once on this machine, in two or three minutes
    when it is idle, and cached. Computation is measured here too, or assumed: --compute-ms says how long forward and
    backward take on your machines. --check shows how good predictions are.

    NCCL and the fp16, bf16 and PowerSGD hooks of DistributedDataParallel are not measured: the output says what they
    take at least, by the link alone.
    """
    _check_options(as_check)
    check_compute(compute_ms, compute_rate)
    check_place(workers, link, racks, trunk, "software")
    if not racks and (again := next(filter(for_trees_only, formats), None)):
        raise click.UsageError(f"--format {again} is for --racks: it differs between switches alone")
    from .calibrate import calibration

    network = _network()
    require("torch", *(["pyroute2"] if network == "veth" else []))
    place = Place(link, workers, racks, trunk or link, placement)
    with said() as progress:
        constants = calibration(network, calibrate, progress)
        if not as_check:
            predictions = _predict(constants, compute_of(model, batch, compute_ms, compute_rate), place, formats)
    if as_check:
        found = _check(constants, runs, as_json)
        if not as_json:
            print_check(found)
            click.echo(verdict(found))
            _warn(max(constants.foreign_load, *(c.foreign_load for c in found)))
        if report is not None:
            from ..report.advising import check_report

            click.echo(f"report: {check_report(report, found, verdict(found))}", err=as_json)
        return
    _show(predictions, constants, model, place, as_json)


def _check_options(as_check: bool) -> None:
    """Raises click.UsageError for an option that would be passed over: --check has trainings of its own."""
    context = click.get_current_context()
    given = {k for k in context.params if context.get_parameter_source(k) is not ParameterSource.DEFAULT}
    wrong = given - OF_BOTH - OF_CHECK if as_check else given & OF_CHECK
    for option in (option for option in context.command.params if option.name in wrong):
        other = "is for predictions, not for --check" if as_check else "goes with --check"
        raise click.UsageError(f"{option.opts[0]} {other}")


def _network() -> Network:
    """The network that is measured here: links, if this process may make them."""
    from ..topology import TopologyError
    from ..topology.namespaces import require_root

    try:
        require_root()
    except TopologyError:
        return "loopback"
    return "veth"


def _check(constants: Calibration, runs: int, as_json: bool) -> list[Checked]:
    from .check import LINK_CASES, LOOPBACK_CASES, check, steps_of

    found = []
    cases = LINK_CASES if constants.network == "veth" else LOOPBACK_CASES
    with measuring(steps_of(cases, runs), as_json) as progress:
        for checked in check(cases, constants.costs(), runs, progress):
            found.append(checked)
            if as_json:
                print_json({"bench": "advise-check"} | asdict(checked) | {"error": checked.error})
    return found


def _predict(
    constants: Calibration, compute: Compute, place: Place, formats: Sequence[str]
) -> tuple[Compute, list[Prediction]]:
    from .predict import predict

    names = formats or [name for name in FORMATS if place.racks or not for_trees_only(name)]
    rate = rate_of(place.link)
    try:
        found = predict(compute, constants.costs(), names, place.workers, rate, place.placement, place.of_model())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return compute, found


def _show(
    found: tuple[Compute, list[Prediction]], constants: Calibration, model: str, place: Place, as_json: bool
) -> None:
    from .predict import advice
    from .tree_advice import tree_advice

    compute, predictions = found
    sentences, racks = advice(predictions), place.of_model()
    if racks is not None:
        sentences += tree_advice(predictions, place.workers, racks)
    gradients = [gradient.elements for gradient in profile(model).gradients]
    without = bounds(compute, gradients, place.workers, rate_of(place.link), racks)
    if len(predictions) > 1:
        sentences += compared(min(predictions[1:], key=lambda p: p.time.step_s), without)
    if as_json:
        about = {"model": model} | place.about() | {"compute": compute.source, "compute_s": compute.seconds}
        about |= {"calibrated": constants.date}
        for prediction in predictions:
            times = asdict(prediction.time)
            line = {"system": prediction.system, "limit": prediction.limit, "reduction": prediction.reduction}
            line |= {"tree": prediction.tree} if racks is not None else {}
            print_json({"bench": "advise"} | about | line | times)
        for bound in without:
            line = {"system": bound.system, "bound": "at least, of the link alone"}
            print_json({"bench": "advise"} | about | line | asdict(bound.time))
        print_json({"bench": "advise"} | about | {"advice": sentences})
        return
    print_predictions(predictions, f"{model}, {place.words()}: predicted")
    if without:
        print_bounds(without)
    click.echo(f"computation: {compute.seconds * 1e3:,.0f} ms a step, {compute.source}")
    click.echo(f"constants: measured {constants.date} over {constants.network}; {place.placement.replace('-', ' ')}")
    _warn(constants.foreign_load)
    click.echo()
    for sentence in sentences:
        say(sentence)


def _warn(foreign_load: float) -> None:
    from ..bench.step_ranks import disturbance

    if warning := disturbance(foreign_load):
        say(f"Warning: {warning}. Calibrate when it is quiet: --calibrate", err=True)


def print_predictions(predictions: Sequence[Prediction], title: str) -> None:
    """Print ``predictions`` for people, in 80 columns."""
    columns = ("system", "step ms", "alone ms", "exposed ms", "limit", "less")
    rows = [
        (
            "Gloo, float32" if p.system == "gloo" else p.name,
            f"{p.time.step_s * 1e3:,.0f}",
            f"{p.time.communication_s * 1e3:,.0f}",
            f"{p.time.exposed_s * 1e3:,.0f}",
            p.limit,
            percent(p.reduction) if p.reduction is not None else "",
        )
        for p in predictions
    ]
    print_table(console(), title, columns, rows, left=("system", "limit"), caption=CAPTION)


def print_bounds(found: Sequence[Bound]) -> None:
    """Print bounds for people, in 80 columns."""
    caption = "by the link alone: nothing for latency, processors and casts; not measured"
    times = [(b.name, b.time.step_s, b.time.communication_s, b.time.exposed_s) for b in found]
    rows = [(name, *(f"at least {s * 1e3:,.0f}" for s in seconds)) for name, *seconds in times]
    columns = ("system", "step ms", "alone ms", "exposed ms")
    print_table(console(), "without a switch, at best", columns, rows, left=("system",), caption=caption)


def percent(share: float) -> str:
    """Whole percent, and never -0%."""
    return f"{round(100 * share) or 0}%"


def print_check(found: Sequence[Checked]) -> None:
    """Predicted beside measured, for people: 80 columns."""
    columns = ("model", "workers", "link", "numbers", "predicted ms", "measured ms", "error")
    rows = [
        (
            c.case.model,
            str(c.case.workers),
            c.case.link or "loopback",
            "Gloo" if c.system == "gloo" else c.system,
            f"{c.predicted_s * 1e3:,.0f}",
            f"{c.measured_s * 1e3:,.0f}",
            f"{c.error:+.0%}",
        )
        for c in found
    ]
    title = "a training step on this machine: predicted and measured"
    print_table(console(), title, columns, rows, keys=4, left=("model", "link", "numbers"))


def verdict(found: Sequence[Checked]) -> str:
    """How many predictions were good: of trainings (both systems) and of steps."""
    good = [abs(c.error) <= GOOD_ERROR for c in found]
    cases = dict.fromkeys(c.case for c in found)
    whole = sum(all(ok for c, ok in zip(found, good, strict=True) if c.case == case) for case in cases)
    return (
        f"within {GOOD_ERROR:.0%}: {sum(good)} of {len(good)} predictions; {whole} of {len(cases)} trainings with both "
        "systems"
    )
