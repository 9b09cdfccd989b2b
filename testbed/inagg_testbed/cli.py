"""The command `inagg`: a root that knows its subcommands by name and imports only the one that runs.

So `inagg --help` is quick, and a switch box runs `inagg switch` without PyTorch. Each subcommand is a click
command in the module that does the work; this file has only the table of them.

Exit status: 0; 1 for an error; 2 for wrong usage or a missing optional dependency; 130 after Ctrl-C, 143 after SIGTERM;
or the integer that the subcommand returned.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from .signals import terminated_like_ctrl_c


class Entry(NamedTuple):
    """A subcommand: where it is (`module:attribute`) and its line in `inagg --help`."""

    target: str
    help: str


COMMANDS = {
    "switch": Entry("inagg_switch.cli.commands:switch", "Run an aggregating switch."),
    "jobs": Entry("inagg_switch.cli.commands:jobs", "List the jobs of a switch."),
    "top": Entry("inagg_switch.cli.commands:top", "Watch the traffic of a switch and its jobs."),
    "evict": Entry("inagg_switch.cli.commands:evict", "End a job of a switch, whoever runs it."),
    "drain": Entry("inagg_switch.cli.commands:drain", "Have a switch take no new jobs."),
    "why": Entry("inagg_switch.cli.commands:why", "Say why a job waits: for which ranks, and for how long."),
    "advise": Entry("inagg_testbed.advise.command:advise", "Predict whether in-network aggregation helps a training."),
    "bench": Entry("inagg_testbed.bench.cli:bench", "Measure throughput on this machine."),
    "demo": Entry("inagg_testbed.demo:demo", "Train a model with in-network aggregation on this machine."),
    "warmup": Entry("inagg_testbed.warmup:warmup", "Compile for this machine now what first starts compile else."),
    "testbed": Entry(
        "inagg_testbed.testbed.cli:testbed", "Run your script around a switch, over links of a given rate."
    ),
    "replay": Entry(
        "inagg_testbed.replay.cli:replay", "Feed recorded packets to a switch again, and compare bit by bit."
    ),
    "experiment": Entry("inagg_testbed.experiments.cli:experiment", "Carry out the claims of the papers."),
}

# Optional imports, by top-level module: the extra that brings them.
EXTRA_OF_MODULE = {
    "torch": "torch",
    "matplotlib": "report",
    "scapy": "capture",
    "pyroute2": "testbed",
    "sklearn": "testbed",
}

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + 2  # as a shell reports a process that SIGINT (2) ended


class LazyGroup(click.Group):
    """A click group whose subcommands are entries of a table, imported when they are called."""

    def __init__(self, *, entries: dict[str, Entry], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a subcommand; None if there is none of this name.

        Raises ModuleNotFoundError if something that the subcommand needs is not installed, and TypeError if
        the table names something that is not a click command.
        """
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.target} is not a click command but {type(command).__name__}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every subcommand to read its help
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])


def print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"inagg {importlib.metadata.version('inagg')}")
        ctx.exit()


def make_root(entries: dict[str, Entry]) -> LazyGroup:
    """The root command over a table of subcommands."""
    version = click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=print_version,
        help="Show the version and exit.",
    )
    return LazyGroup(
        name="inagg",
        entries=entries,
        params=[version],
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="In-network aggregation of gradients: the switch, its control, and a testbed for one machine.",
    )


def run(root: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return the exit status; errors are told on stderr.

    Raises what the subcommand raises, except what a user can act on: wrong usage, a missing extra, Ctrl-C.
    """
    try:
        # standalone_mode would end the process here, and with status 1 after Ctrl-C
        status = root.main(args=arguments, prog_name="inagg", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            return getattr(abort.__context__, "exit_code", EXIT_INTERRUPTED)
        click.echo("Aborted.", err=True)
        return EXIT_ERROR
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = EXTRA_OF_MODULE.get(missing)
        if extra is None:
            raise  # not an extra: the installation or the code is broken, and the traceback says where
        click.echo(
            f"Error: this needs {missing}, which is not installed. Install it: pip install 'inagg[{extra}]'",
            err=True,
        )
        return EXIT_USAGE
    return status if isinstance(status, int) else 0


def main() -> int:
    """Entry point of the console script `inagg`."""
    with terminated_like_ctrl_c():
        return run(make_root(COMMANDS))
