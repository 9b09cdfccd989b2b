"""`inagg testbed run`: a script around a switch; options in, words or JSON out."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from inagg_switch.cli.sections import Whole
from inagg_switch.text import count_text
from inagg_testbed.option_types import json_option
from inagg_testbed.topology import Topology, open_topology, reopen, start_target, target_entry

from .keeping import standing
from .options import Setup, setup_options
from .running import Ended, run_script
from .web import live_view


@click.command(context_settings={"ignore_unknown_options": False})
@setup_options
@click.option(
    "--local-size",
    type=Whole(1),
    metavar="N",
    help="Make each worker a host of N ranks, as of N GPUs: what LOCAL_RANK and INAGG_LOCAL_SIZE say.",
)
@click.option("--in", "inside", metavar="NAME", help="Run in the testbed that `up` made, with its switch.")
@json_option("How it ended as JSON on stdout; what ranks say goes to stderr.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    local_size: int | None,
    inside: str | None,
    as_json: bool,
    command: tuple[str, ...],
    **options: Any,
) -> int:
    """Run COMMAND on every worker, around a switch, and remove everything at the end.

    With --local-size each worker is a host of several ranks: they sum inside it first, and its link carries each value
    once.

    Each rank finds MASTER_ADDR, RANK, WORLD_SIZE and the rest that torchrun sets, and INAGG_SWITCH. The exit status is
    that of the first rank that failed, else 0.
    """
    if inside is not None:
        given = {k for k in options if ctx.get_parameter_source(k) is not click.core.ParameterSource.DEFAULT}
        asked = sorted(given - {"format"})
        if asked:
            raise click.UsageError(f"--in takes the testbed as it is: leave out --{asked[0].replace('_', '-')}")
        state = standing(inside)
        _tell(f"testbed {inside}: {state.about['summary']}", as_json)
        more = {"INAGG_FORMAT": options["format"]} if "format" in given else {}
        environment = {**state.about["environment"], **more, "INAGG_SWITCH": state.about["control"]}
        return _run_in(reopen(state), command, environment, state.about.get("leaves", ()), local_size, as_json)
    setup = Setup.of(**options)
    each = "" if local_size is None else f", {count_text(local_size, 'rank')} on each"
    _tell(f"testbed: {setup.describe()}{each}", as_json)
    wiring = target_entry(setup.target).wiring
    made_by = shlex.join(command)
    with (
        live_view(setup.web) as web,
        open_topology(
            setup.workers, setup.link, wiring=wiring, racks=setup.racks, trunk=setup.trunk, made_by=made_by
        ) as topology,
    ):
        if web.url is not None:
            _tell(f"live view: {web.url} in a browser, while this runs", as_json)
        with start_target(setup.target, topology, [*setup.switch_options(), *web.options]) as switch:
            environment = {**setup.rank_environment(), "INAGG_SWITCH": switch.control}
            status = _run_in(topology, command, environment, switch.leaves, local_size, as_json)
        if setup.record is not None:
            from inagg_testbed.replay.recording import add_run

            said = add_run(setup.record, command=list(command), summary=setup.describe(), exit_code=status)
            _tell(said, as_json)
    return status


def _run_in(
    topology: Topology,
    command: Sequence[str],
    environment: dict[str, str],
    leaves: Sequence[str],
    local_size: int | None,
    as_json: bool,
) -> int:
    """Run a script in a topology with a switch, and ``leaves`` in its racks; its exit status."""

    def say(rank: int, kind: str, line: str) -> None:
        name = f"w{rank}" if local_size is None else "w{}.{}".format(*divmod(rank, local_size))
        print(f"[{name}] {line}", file=sys.stderr if as_json or kind == "err" else sys.stdout, flush=True)

    start_s = time.monotonic()
    ends = run_script(topology, command, environment, say, leaves, local_size)
    seconds = time.monotonic() - start_s
    failed = [end for end in ends if end.exit_code and not end.asked]
    status = failed[0].exit_code if failed else 0
    if as_json:
        ranks = [
            {"rank": end.rank, "exit_code": end.exit_code, "seconds": end.seconds, "told_to_end": end.asked}
            for end in ends
        ]
        click.echo(json.dumps({"testbed": topology.name, "exit_code": status, "seconds": seconds, "ranks": ranks}))
    elif failed:
        _tell(failed_words(ends), as_json)
    else:
        who = "the rank" if len(ends) == 1 else f"all {len(ends)} ranks"
        _tell(f"{who} ended well after {seconds:.1f} s", as_json)
    return status


def failed_words(ends: Sequence[Ended]) -> str:
    """Say which rank failed, and whether others were told to end, rather than ended by themselves."""
    failed = next(end for end in ends if end.exit_code and not end.asked)
    told = sum(end.asked for end in ends)
    others = f"; {count_text(told, 'other')} {'was' if told == 1 else 'were'} told to end" if told else ""
    return f"rank {failed.rank} failed with exit status {failed.exit_code}{others}"


def _tell(text: str, as_json: bool) -> None:
    """Progress, for people; not among the output of the ranks."""
    if not as_json:
        click.echo(text, err=True)
