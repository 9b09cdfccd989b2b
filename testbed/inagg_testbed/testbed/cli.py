"""The commands `inagg testbed ...`: options in, words out. What they do stands beside this and in `topology`."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import click
from rich.console import Console

from inagg_link.signals import Deferred
from inagg_switch.control.text import count_text
from inagg_testbed.switch_process import COMMAND
from inagg_testbed.tables import console, print_table
from inagg_testbed.topology import (
    State,
    Topology,
    TopologyError,
    all_states,
    load,
    open_topology,
    reopen,
    start_target,
    target_entry,
    tear_down,
)
from inagg_testbed.topology.launch import enter_namespace, exit_status
from inagg_testbed.topology.opening import perhaps_in_use, require_root, strays
from inagg_testbed.topology.processes import processes_of
from inagg_testbed.topology.state import others_hidden

from .keeping import DEFAULT_NAME, UP, end_owner, keep, log_of, start_keeper
from .options import Setup, setup_options
from .running import Ended, run_script
from .web import live_view

AS_ROOT: Final = 'sudo "$(command -v inagg)" testbed status'
"""A virtual environment is not on the PATH of sudo."""

name_option = click.option("--name", default=DEFAULT_NAME, show_default=True, help="Of the testbed.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


class DefaultGroup(click.Group):
    """A group in which `run` may be left out: what begins with no subcommand is its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=DefaultGroup,
    no_args_is_help=True,
    epilog="""\b
Examples:
  inagg testbed --workers 4 -- python train.py
                                  a switch, four ranks, over loopback
  sudo inagg testbed --link 1gbit --loss 0.01 -- python train.py
                                  each rank behind a link of 1 Gbit/s
  inagg testbed --web -- python train.py
                                  the same, with a page that shows it
  inagg testbed --record run.pcap -- python train.py
  inagg replay run.pcap           the same packets again, the same bits?
  sudo inagg testbed up --link 1gbit
  sudo inagg testbed exec w0 -- ip -s link
  sudo inagg testbed status
  sudo inagg testbed down
""",
)
def testbed() -> None:
    """A switch and its workers on this machine: for your own script, over loopback or over links of a given rate.

    Without a subcommand it is `run`.
    """


@testbed.command(context_settings={"ignore_unknown_options": False})
@setup_options
@click.option(
    "--local-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Make each worker a host of N ranks, as of N GPUs: what LOCAL_RANK and INAGG_LOCAL_SIZE say.",
)
@click.option("--in", "inside", metavar="NAME", help="Run in the testbed that `up` made, with its switch.")
@click.option("--json", "as_json", is_flag=True, help="How it ended as JSON on stdout; what ranks say goes to stderr.")
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
        state = _standing(inside)
        _tell(f"testbed {inside}: {state.about['setup']}", as_json)
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
            from inagg_testbed.replay.recording import RecordingError, add_note, why_not_whole

            try:
                why = why_not_whole(setup.record)
                add_note(setup.record, {"command": list(command), "setup": setup.describe(), "exit_code": status})
            except (RecordingError, OSError) as error:
                why = str(error)
            what = "recorded" if why is None else f"recorded in part ({why})"
            _tell(f"{what} in {setup.record}; look at it again: inagg replay {setup.record}", as_json)
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
    """Which of the ranks failed, and whether others were told to end, rather than ended by themselves."""
    failed = next(end for end in ends if end.exit_code and not end.asked)
    told = sum(end.asked for end in ends)
    others = f"; {count_text(told, 'other')} {'was' if told == 1 else 'were'} told to end" if told else ""
    return f"rank {failed.rank} failed with exit status {failed.exit_code}{others}"


@testbed.command()
@name_option
@setup_options
@json_option
def up(name: str, as_json: bool, **options: Any) -> None:
    """Make a testbed that stays until `down`: a switch, and with --link namespaces and links."""
    setup = Setup.of(**options)
    if setup.link is not None:
        require_root(target_entry(setup.target).wiring)
    with Console(stderr=True).status(f"testbed {name}: {setup.describe()}") if not as_json else nullcontext():
        state = start_keeper(name, [*COMMAND, "testbed", "keep"], setup)
    if as_json:
        click.echo(json.dumps(_line(state)))
        return
    click.echo(f"testbed {name} is up: {setup.describe()}")
    click.echo(f"  its switch: {state.about['control']}")
    if state.about["web"] is not None:
        click.echo(f"  its live view: {state.about['web']} in a browser")
    click.echo(f"  a script on every worker: inagg testbed run --in {name} -- python train.py")
    if state.namespaces:
        click.echo(f"  a command on one: inagg testbed exec --name {name} w0 -- ip -s link")
        click.echo(f"  its jobs: inagg testbed exec --name {name} switch -- inagg jobs")
    click.echo(f"  away with it: inagg testbed down --name {name}")


@testbed.command(hidden=True, name="keep")
@name_option
@setup_options
def keep_command(name: str, **options: Any) -> None:
    """Make a testbed and keep it until SIGTERM: the process behind `up`."""
    keep(name, Setup.of(**options))


@testbed.command()
@json_option
def status(as_json: bool) -> int:
    """Show your testbeds, and what killed ones have left behind.

    You see those that you have made; with sudo, those of root, so all that have links.

    Exit status: 0, or 1 if something was left behind.
    """
    states = list(all_states())
    lost = strays(states)
    used = perhaps_in_use(lost)
    left_over = [state for state in states if state.left_over]
    if as_json:
        namespaces = {"unknown_namespaces": lost, "perhaps_in_use": used}
        click.echo(json.dumps({"testbeds": [_line(state) for state in states], **namespaces}))
        return int(bool(left_over))
    if not states:
        click.echo("root has no testbed" if os.geteuid() == 0 else "you have no testbed")
    else:
        keys = ("name", "workers", "link", "control", "processes", "state")
        rows = [[str(line[key]) for key in keys] for line in map(_line, states)]
        columns = ["switch" if key == "control" else key for key in keys]
        print_table(console(), "testbeds", columns, rows, keys=len(columns), left=columns)
    for state in left_over:
        click.echo(f"{state.name} was killed and left this behind. Remove it: inagg testbed down --name {state.name}")
    for namespace in lost:
        if namespace not in used:
            told = f"{namespace} has our prefix but is no testbed's that I know."
            click.echo(f"{told} If it is: ip netns delete {namespace}")
    _tell_of_others(used)
    return int(bool(left_over))


def _tell_of_others(used: Sequence[str]) -> None:
    """``used``: network namespaces that may be those of somebody else's testbed, which runs."""
    names = ", ".join(used)
    if used and os.geteuid() == 0:
        click.echo(f"a testbed that I do not know may run in {names}: processes live there")
    elif used:
        click.echo(f"a testbed of root's may run in {names}. See it: {AS_ROOT}")
    elif others_hidden():
        click.echo(f"root may have testbeds, which you do not see. See them: {AS_ROOT}")


def _line(state: State) -> dict[str, Any]:
    """A testbed for `status`."""
    running = processes_of(state.mark, state.namespaces)
    if state.left_over:
        condition = "left over"
    else:
        condition = "up" if state.about["made_by"] == UP else f"runs {state.about['made_by']}".strip()
    return {
        "name": state.name,
        "workers": state.about["workers"],
        "link": state.about["link"] or "loopback",
        "control": state.about.get("control", ""),
        "web": state.about.get("web"),
        "setup": state.about.get("setup", ""),
        "processes": len(running),
        "namespaces": list(state.namespaces),
        "owner": state.owner_pid,
        "state": condition,
    }


@testbed.command()
@click.option(
    "--name", help=f"Of the testbed, also one that runs.  [default: {DEFAULT_NAME}, if `up` made it, and all leftovers]"
)
@click.option("--all", "everyone", is_flag=True, help="All that `up` made, and all leftovers.")
@json_option
def down(name: str | None, everyone: bool, as_json: bool) -> None:
    """Remove a testbed: its processes, namespaces and interfaces. What others have made stays, unless you name it."""
    others: list[State] = []
    if name is None:
        made = [state for state in all_states() if state.left_over or state.about["made_by"] == UP]
        states = [state for state in made if everyone or state.left_over or state.name == DEFAULT_NAME]
        others = [state for state in made if state not in states]
    elif everyone:
        raise click.UsageError("--name and --all do not go together")
    else:
        states = [_known(name)]
    removed = []
    for state in states:
        left_over = state.left_over
        end_owner(state)
        with Deferred():
            ended = tear_down(state) if load(state.name) == state or left_over else []
        log_of(state.name).unlink(missing_ok=True)
        removed.append({"name": state.name, "left_over": left_over, "processes_ended": len(ended)})
        if not as_json:
            what = f"{len(state.namespaces)} namespaces, {len(ended)} processes" if left_over else "it was up"
            click.echo(f"removed {state.name} ({'left over: ' if left_over else ''}{what})")
    if as_json:
        click.echo(json.dumps({"removed": removed}))
    elif not states:
        click.echo("nothing to remove")
    if others and not as_json:
        names = ", ".join(state.name for state in others)
        click.echo(f"still up, perhaps another's: {names} (remove one with --name, or --all)")


@testbed.command(name="exec")
@name_option
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on NODE (w0, w1, ..., switch) of a testbed that is up, in place of this process."""
    state = _standing(name)
    place = reopen(state).node(node)
    os.environ.update(place.environment() | {"INAGG_SWITCH": state.about["control"]})
    try:
        if place.namespace is not None:
            enter_namespace(place.namespace)
        os.execvp(command[0], command)
    except OSError as error:
        click.echo(f"Error: cannot run {command[0]!r} on {node}: {error.strerror or error}", err=True)
        sys.exit(exit_status(error))


def _known(name: str) -> State:
    state = load(name)
    if state is None:
        names = ", ".join(state.name for state in all_states())
        raise TopologyError(f"there is no testbed {name!r}" + (f": there is {names}" if names else ""))
    return state


def _standing(name: str) -> State:
    """A testbed that `up` has made and that stands."""
    state = load(name)
    if state is None or "control" not in state.about:
        raise TopologyError(f"there is no testbed {name!r}. Make it: inagg testbed up --name {name}")
    if state.left_over:
        raise TopologyError(f"testbed {name!r} was killed. Remove what is left: inagg testbed down --name {name}")
    return state


def _tell(text: str, as_json: bool) -> None:
    """Progress, for people; not among the output of the ranks."""
    if not as_json:
        click.echo(text, err=True)
