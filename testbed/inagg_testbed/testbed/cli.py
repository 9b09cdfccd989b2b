"""The commands `inagg testbed ...`: options in, words out. `run` has a file of its own; what they do stands beside this
and in `topology`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import click
from click.shell_completion import CompletionItem
from rich.console import Console

from inagg.lazy_group import did_you_mean, need_working_folder
from inagg_link.signals import Deferred
from inagg_testbed.option_types import OptionType, json_option
from inagg_testbed.switch_process import COMMAND
from inagg_testbed.tables import console, print_table
from inagg_testbed.topology import State, TopologyError, all_states, load, reopen, switch_for, target_entry, tear_down
from inagg_testbed.topology.launch import enter_namespace, exit_status
from inagg_testbed.topology.opening import perhaps_in_use, require_root, strays
from inagg_testbed.topology.processes import processes_of
from inagg_testbed.topology.state import check_name, others_hidden

from .keeping import DEFAULT_NAME, end_owner, keep, log_of, standing, start_keeper
from .options import Setup, setup_options
from .run_command import run

AS_ROOT: Final = 'sudo "$(command -v inagg)" testbed status'
"""A virtual environment is not on the PATH of sudo."""

STARTING: Final = ("run", "up")
"""The subcommands that start something. The others look, or remove, so they run where a script's trap calls them, too:
in a working directory that it has just removed."""


class TestbedName(OptionType):
    """A name that a testbed may have."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return check_name(value)
        except TopologyError as error:
            self.fail(str(error), param, ctx)


name_option = click.option(
    "--name", default=DEFAULT_NAME, show_default=True, type=TestbedName(), metavar="NAME", help="The testbed's name."
)


class DefaultGroup(click.Group):
    """A group in which `run` may be left out: what begins with no subcommand is its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            word = args[0]
            if not word.startswith("-") and shutil.which(word) is None and not ctx.resilient_parsing:
                meant = did_you_mean(word, self.commands) or f" Subcommands: {', '.join(self.commands)}"
                ctx.fail(f"{word!r} is no subcommand, and no program that can be run here.{meant}")
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options too are those of `run`."""
        found = super().shell_complete(ctx, incomplete)
        known = {item.value for item in found}
        return found + [i for i in self.commands["run"].shell_complete(ctx, incomplete) if i.value not in known]


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
@click.pass_context
def testbed(ctx: click.Context) -> None:
    """A switch and its workers on this machine: for your own script, over loopback or over links of a given rate.

    Without a subcommand it is `run`.
    """
    if ctx.invoked_subcommand in STARTING:
        need_working_folder(ctx)


testbed.add_command(run)


@testbed.command()
@name_option
@setup_options
@json_option("One JSON object.")
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
@click.argument("setup")
def keep_command(name: str, setup: str) -> None:
    """Make the testbed of SETUP (`Setup.as_json`) and keep it until SIGTERM: the process behind `up`."""
    keep(name, Setup.from_json(setup))


@testbed.command()
@json_option("One JSON object.")
def status(as_json: bool) -> int:
    """Show your testbeds, and what killed ones have left behind.

    You see those that you have made; with sudo, those of root, so all that have links.

    Exit status: 0, or 1 if something is there to remove: what a killed testbed has left behind, or a namespace with our
    prefix that is no testbed's.
    """
    states = list(all_states())
    lost = strays(states)
    used = perhaps_in_use(lost)
    left_over = [state for state in states if state.left_over]
    nobodys = [namespace for namespace in lost if namespace not in used]
    exit_code = int(bool(left_over or nobodys))
    if as_json:
        namespaces = {"unknown_namespaces": lost, "perhaps_in_use": used}
        click.echo(json.dumps({"testbeds": [_line(state) for state in states], **namespaces}))
        return exit_code
    if not states:
        click.echo("root has no testbed" if os.geteuid() == 0 else "you have no testbed")
    else:
        keys = ("name", "workers", "link", "control", "processes", "state")
        rows = [[str(line[key]) for key in keys] for line in map(_line, states)]
        columns = ["switch" if key == "control" else key for key in keys]
        print_table(console(), "testbeds", columns, rows, keys=len(columns), left=columns)
    for state in left_over:
        click.echo(f"{state.name} was killed and left this behind. Remove it: inagg testbed down --name {state.name}")
    for namespace in nobodys:
        told = f"{namespace} has our prefix but is no testbed's that I know."
        click.echo(f"{told} If it is: ip netns delete {namespace}")
    _tell_of_others(used)
    return exit_code


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
        condition = "up" if state.about.get("stays") else f"runs {state.about['made_by']}".strip()
    return {
        "name": state.name,
        "workers": state.about["workers"],
        "link": state.about["link"] or "loopback",
        "control": state.about.get("control", ""),
        "web": state.about.get("web"),
        "summary": state.about.get("summary", ""),
        "processes": len(running),
        "namespaces": list(state.namespaces),
        "owner": state.owner_pid,
        "state": condition,
    }


@testbed.command()
@click.option(
    "--name",
    help=f"The testbed's name, also of one that runs.  [default: {DEFAULT_NAME}, if `up` made it, and all leftovers]",
)
@click.option("--all", "everyone", is_flag=True, help="All that `up` made, and all leftovers.")
@json_option("One JSON object.")
def down(name: str | None, everyone: bool, as_json: bool) -> None:
    """Remove a testbed: its processes, namespaces and interfaces. What others have made stays, unless you name it."""
    others: list[State] = []
    if name is None:
        made = [state for state in all_states() if state.left_over or state.about.get("stays")]
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
    """Run COMMAND on NODE (w0, w1, ..., switch) of a testbed that is up; its exit status is ours."""
    state = standing(name)
    topology = reopen(state)
    place, switch = topology.node(node), state.about["control"]
    if place in topology.workers:  # as a script that `run` starts there has it
        switch = switch_for(topology, topology.workers.index(place), switch, state.about.get("leaves", ()))
    os.environ.update({**state.about["environment"], **place.environment(), "INAGG_SWITCH": switch})
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
