"""`inagg demo`: train a real model with its gradients summed in the network, then with Gloo, and compare.

With a P4 switch in the middle the same training runs over the software switch too, and must end with the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from inagg.extras import require
from inagg_switch.cli.new_files import NewFile
from inagg_switch.cli.sections import Whole
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from .demo_training import WORKERS_MAX, Outcome, Training, run_trainings
from .demo_words import conclusions, go_on, print_outcomes
from .option_types import format_option, json_option, seeds_option
from .progress import Steps
from .report.demo import THROUGHPUT_BYTES, demo_report, measure_throughput, why_no_report
from .report.history import History
from .report.option import drawable
from .result_setup import setup
from .tables import console, say
from .testbed.options import check_place, place_options, places
from .testbed.web import live_view, web_option
from .topology import open_topology, start_target

REPORT = "inagg-demo.html"
SEEDS: Final = {"software": 5, "bmv2": 1}
"""How many, unless it is said: a training over bmv2 takes minutes."""
EPOCHS: Final = {"software": 6, "bmv2": 2}
SLOW_BMV2: Final = (
    "If that was for want of time: a bmv2 with its logging macros, as it is built by default, is some seven times "
    "slower than one without (p4/README.md says how to tell); --epochs 1 --workers 2 takes least"
)


@click.command()
@click.option("--workers", default=4, show_default=True, type=Whole(2, WORKERS_MAX), help="Processes; up to 32 a rack.")
@place_options
@click.option(
    "--epochs",
    type=Whole(1),
    help=f"Passes over the digits.  [default: {EPOCHS['software']}; over bmv2 {EPOCHS['bmv2']}]",
)
@seeds_option(f"{SEEDS['software']}; over bmv2, or with --record, {SEEDS['bmv2']}", 100)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=Whole(0, (1 << 32) - 101),
    help="Of the first training; the next one's is one more. Initial weights, order of the data and rounding follow "
    "from it: the same seed gives the same bits.",
)
@format_option
@click.option(
    "--target",
    default="software",
    show_default=True,
    type=click.Choice(["software", "bmv2"]),
    help="The switch. bmv2 needs simple_switch_grpc and root, and is compared with the software switch as well.",
)
@click.option("--gloo/--no-gloo", default=True, show_default=True, help="Train with Gloo too, to compare.")
@click.option(
    "--report",
    type=NewFile(replaces=True),
    callback=drawable,
    help=f"The HTML file to write.  [default: {REPORT}; with --json none]",
)
@click.option(
    "--record",
    type=NewFile(),
    help="Keep what the software switch takes in and gives out, for `inagg replay FILE`; compressed if FILE ends with "
    ".gz.",
)
@web_option
@json_option()
def demo(
    workers: int,
    link: str | None,
    racks: int,
    trunk: str | None,
    epochs: int | None,
    seeds: int | None,
    seed: int,
    format_: str,
    target: str,
    gloo: bool,
    report: Path | None,
    record: Path | None,
    web: str | None,
    as_json: bool,
) -> None:
    """Train a small CNN on handwritten digits, its gradients summed by a switch on this machine.

    Starts `inagg switch` and the worker processes, trains with DistributedDataParallel over the switch and the same
    with Gloo, from several seeds, and compares them. Needs no GPU, and root for links only; everything has ended when
    it returns.

    With --racks the workers of each rack have a switch of their own, a leaf, and the one in the middle adds up what the
    leaves send: a tree of switches.

    Writes a report with pictures, for which it measures some all-reduces too (if matplotlib is there).
    """
    check_place(workers, link, racks, trunk, target)
    require("torch", "sklearn", *(["pyroute2"] if link is not None or target == "bmv2" else []))
    if report is None and not as_json:
        report = _usual_report()
    few = target == "bmv2" or record is not None
    from_seed = range(seed, seed + (seeds or SEEDS["bmv2" if few else "software"]))
    place = Place(workers, link, racks, trunk)
    with live_view(web) as view, Steps(as_json) as progress:
        if view.url is not None:
            progress.say(f"live view: {view.url} in a browser, while this trains")
        passes = epochs or EPOCHS[target]
        found = _train(place, format_, target, gloo, record, view.options, passes, from_seed, progress)
    outcomes = [outcome for outcome, _ in found]
    _show(outcomes, place, as_json)
    if report is not None:
        throughput = _all_reduces(place, format_) if gloo else []
        click.echo(f"report: {demo_report(report, found, place.where, throughput)}", err=as_json)
    if record is not None:
        from .replay.recording import add_run

        said = add_run(record, command=["inagg", "demo"], summary=f"{place.where}, target software")
        click.echo(said, err=as_json)
    _check(outcomes, target)
    if not as_json:
        click.echo("\n" + "\n".join(go_on()))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the workers are."""

    workers: int
    link: str | None
    racks: int
    trunk: str | None

    @property
    def where(self) -> str:
        """In words."""
        return f"{self.workers} workers {places(self.link, self.racks, self.trunk)}"

    def about(self) -> dict[str, Any]:
        """Facts for programs: what is not as usual."""
        links: dict[str, Any] = {"link": self.link} if self.link else {}
        trunks = {"trunk": self.trunk or self.link} if self.link else {}
        return links | ({"racks": self.racks} | trunks if self.racks else {})


def _usual_report() -> Path | None:
    """Where a report goes for which nobody has asked by name; None, and people are told why, if it cannot be made."""
    report = Path(REPORT)
    if (why := why_no_report(report)) is not None:
        click.echo(f"no report: {why}", err=True)
        return None
    return report


def _show(outcomes: Sequence[Outcome], place: Place, as_json: bool) -> None:
    """Print outcomes for people, or for programs."""
    if as_json:
        for outcome in outcomes:
            line = asdict(outcome) | {"accuracy": outcome.accuracy}
            click.echo(json.dumps({"bench": "demo", "workers": place.workers} | place.about() | line | setup()))
        return
    in_racks = f" in {place.racks} racks" if place.racks else ""
    print_outcomes(console(), outcomes, f"{place.workers} workers{in_racks}")
    for sentence in conclusions(outcomes):
        say(sentence)


def _check(outcomes: Sequence[Outcome], target: str) -> None:
    """Raises click.ClickException unless all that should have ended with the same bits has done so."""
    if not all(outcome.same_parameters for outcome in outcomes):
        raise click.ClickException("the workers did not end with the same parameters")
    if len({tuple(outcome.parameters) for outcome in outcomes if outcome.system != "gloo"}) > 1:
        raise click.ClickException(f"{target} and the software switch did not end with the same parameters")


def _all_reduces(place: Place, format_: str) -> list[dict[str, Any]]:
    """Measure the all-reduces of the report, beside the trainings; nothing, where they cannot be measured."""
    with Steps() as steps:
        task = steps.task("all-reduces for the report", 1 + len(THROUGHPUT_BYTES))
        try:
            found = measure_throughput(
                place.workers, format_, place.link, place.racks, place.trunk, progress=task.begin
            )
        except click.ClickException as error:
            why = error.format_message()
        else:
            task.end()
            return found
    click.echo(f"no all-reduces in the report: {why}", err=True)
    return []


def _train(
    place: Place, format_: str, target: str, gloo: bool, record: Path | None, web: Sequence[str], epochs: int,
    seeds: Sequence[int], progress: Steps,
) -> list[tuple[Outcome, History]]:  # fmt: skip
    """The trainings over all switches, which have the options ``web``, and with Gloo."""
    found = []
    options: dict[str, Any] = {"format": format_}
    what = "a CNN on scikit-learn's digits" + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")
    if target == "bmv2":
        from inagg_switch.p4.program import BMV2_WINDOW

        from . import bmv2

        # The noise of a switch depends on slots, so the same numbers for both switches.
        options |= {"lanes": bmv2.LANES, "window": BMV2_WINDOW}
        with (
            open_topology(place.workers, place.link or "none", wiring="ports") as topology,
            start_target(target, topology, ["--program", bmv2.program_for(format_), *web]) as running,
        ):
            progress.say(f"a bmv2 switch, {place.workers} workers in namespaces; {what}")
            try:
                found += run_trainings([Training(target, options, running)], topology, epochs, seeds, progress)
            except (RuntimeError, TimeoutError) as error:
                last = str(error).strip().splitlines()[-1].rstrip(".")  # without the traceback of a rank
                raise click.ClickException(f"the training over bmv2 failed: {last}. {SLOW_BMV2}") from None
    # In datagrams as a network has them, though it is loopback: so that the bytes are those of a network, too.
    given = ["--datagram-bytes", str(UDP_PAYLOAD_BYTES_1500), *web]
    given += [] if record is None else ["--record", str(record.absolute())]
    racks, trunk = place.racks, place.trunk
    with (
        open_topology(place.workers, place.link, racks=racks, trunk=trunk) as topology,
        start_target("software", topology, given) as running,
    ):
        middle = f"a tree of {1 + racks} switches" if racks else "a switch"
        progress.say(f"{middle} on {running.control}, {place.where}; {what}")
        trainings = [Training("tree" if racks else "software", options, running)]
        trainings += [Training("gloo")] if gloo else []
        return found + run_trainings(trainings, topology, epochs, seeds, progress)
