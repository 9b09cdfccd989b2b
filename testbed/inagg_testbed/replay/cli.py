"""`inagg replay FILE`: the recorded packets once more, through the reference model and through the fast core."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..option_types import json_option
from ..progress import said
from .compare import Comparison, compare, make_core
from .recording import Begin, Event, RecordingError, Run, events

SHOW_EVERY_S = 0.2
CORES = ("model", "fast")
NAMES = {"model": "reference model", "fast": "fast core"}


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--core",
    type=click.Choice(("both", *CORES)),
    default="both",
    show_default=True,
    help="The reference model (slow), the core of the software switch, or one after the other.",
)
@json_option()
def replay(file: Path, core: str, as_json: bool) -> int:
    """Feed the packets that `inagg testbed --record FILE` kept to a switch again, and compare what it sends.

    Exit status: 0 if all is the same, 1 if not (the first difference is told), 2 if FILE is no recording.
    """
    same = True
    try:
        for number, name in enumerate(CORES if core == "both" else (core,)):
            same = _replay(file, name, as_json, tell_of_it=number == 0) and same
    except RecordingError as error:
        raise click.BadParameter(str(error), param_hint="FILE") from None
    return 0 if same else 1


def _replay(file: Path, name: str, as_json: bool, tell_of_it: bool) -> bool:
    """Replay into one core; whether all was the same."""
    sequence = events(file)
    begin = next(sequence)
    assert isinstance(begin, Begin)
    core = make_core(name, begin)  # its code may have to be loaded, or compiled
    start_s = time.monotonic()
    runs: list[Run] = []

    def noting_runs() -> Iterator[Event]:
        for event in sequence:
            if isinstance(event, Run):
                runs.append(event)
            yield event

    with said() as say:
        result = Comparison()
        shown_s = start_s
        for result in compare(core, noting_runs()):
            if time.monotonic() - shown_s > SHOW_EVERY_S:
                shown_s = time.monotonic()
                say(f"{NAMES[name]}: replaying; {result.received:,} datagrams so far")
    seconds = time.monotonic() - start_s
    if as_json:
        click.echo(json.dumps(_line(name, begin, result, seconds, runs)))
    else:
        if tell_of_it:
            _tell(file, begin, result, runs)
        click.echo(_verdict(name, result, seconds))
    return result.difference is None


def _tell(file: Path, begin: Begin, result: Comparison, runs: list[Run]) -> None:
    """Describe the recording."""
    click.echo(f"{file}: the switch {begin.switch[0]}:{begin.switch[1]}, {begin.slots:,} slots")
    for run in runs:
        click.echo(f"  of: {run.fields.get('summary', '')}")
        click.echo(f"  running: {' '.join(run.fields.get('command', []))}")
    if begin.fields.get("faults"):
        click.echo(f"  faults: {begin.fields['faults']}, seed {begin.fields.get('fault_seed')}")
    for b in result.jobs:
        text = f"{len(b.children)} workers, {b.format.name}, {b.lanes} lanes, window {b.lease.window}, seed {b.seed}"
        click.echo(f"  job {b.job}: {text}")


def _verdict(name: str, result: Comparison, seconds: float) -> str:
    """One line for a core, or a few."""
    took = f"{result.received:,} datagrams in, {seconds:.1f} s"
    if result.difference is None:
        out = f"{result.compared:,} datagrams out ({result.compared_bytes:,} bytes)"
        text = f"{NAMES[name]}: {out}, bit-identical ({took})"
    else:
        found = result.difference
        where = f"record {found.number}, to {found.to[0]}:{found.to[1]}" if found.number else "at the end"
        text = f"{NAMES[name]}: DIFFERENT after {result.compared:,} datagrams out ({took})\n  {where}: {found.what}"
    if not result.whole and result.difference is None:
        text += f"\n  as far as the recording goes: {result.why_not_whole}"
    if result.not_sent and result.difference is None:
        text += (
            f"\n  {result.not_sent:,} more were computed; then as now nobody sent them, for want of room in the kernel"
        )
    return text


def _line(name: str, begin: Begin, result: Comparison, seconds: float, runs: list[Run]) -> dict[str, Any]:
    found = result.difference
    return {
        "core": name,
        "identical": found is None,
        "datagrams_in": result.received,
        "datagrams_out": result.compared,
        "bytes_out": result.compared_bytes,
        "whole": result.whole,
        "not_sent": result.not_sent,
        "difference": None if found is None else {"record": found.number, "to": list(found.to), "what": found.what},
        "fault_seed": begin.fields.get("fault_seed"),
        "job_seeds": [binding.seed for binding in result.jobs],
        "seconds": round(seconds, 3),
        "runs": [dict(run.fields) for run in runs],
    }
