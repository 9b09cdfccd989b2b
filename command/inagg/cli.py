"""The command `inagg`: the table of its subcommands, and what becomes of errors that a user can act on.

Each subcommand is a click command in the module that does the work, and is imported when it runs. So `inagg --help` is
quick, and a switch box runs `inagg switch` without PyTorch.

Exit status: 0; 1 for an error; 2 for wrong usage or a missing optional dependency; 130 after Ctrl-C, 143 after SIGTERM;
or the integer that the subcommand returned.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

import click

from inagg_wire.variables import misspelt

from . import streams
from .extras import EXTRA_OF_MODULE, MissingExtra
from .lazy_group import Entry, LazyGroup, did_you_mean, need_working_folder
from .signals import terminated_like_ctrl_c

COMMANDS = {
    "switch": Entry("inagg_switch.cli.commands:switch", "Run an aggregating switch."),
    "jobs": Entry("inagg_switch.cli.commands:jobs", "List the jobs of a switch.", anywhere=True),
    "top": Entry("inagg_switch.cli.commands:top", "Watch the traffic of a switch and its jobs.", anywhere=True),
    "evict": Entry("inagg_switch.cli.commands:evict", "End a job of a switch, whoever runs it.", anywhere=True),
    "drain": Entry("inagg_switch.cli.commands:drain", "Have a switch take no new jobs.", anywhere=True),
    "why": Entry(
        "inagg_switch.cli.commands:why", "Say why a job waits: for which ranks, and for how long.", anywhere=True
    ),
    "doctor": Entry("inagg_testbed.doctor.command:doctor", "Say what is wrong with this machine, and what to do."),
    "advise": Entry("inagg_testbed.advise.command:advise", "Predict whether in-network aggregation helps a training."),
    "bench": Entry("inagg_testbed.bench.cli:bench", "Measure how fast things are on this machine."),
    "demo": Entry("inagg_testbed.demo:demo", "Train a model with in-network aggregation on this machine."),
    "warmup": Entry("inagg_testbed.warmup:warmup", "Compile for this machine now, so that the first start need not."),
    "testbed": Entry(
        "inagg_testbed.testbed.cli:testbed",
        "Run your script around a switch, over links of a given rate.",
        anywhere=True,
    ),
    "replay": Entry(
        "inagg_testbed.replay.cli:replay", "Feed recorded packets to a switch again, and compare bit by bit."
    ),
    "experiment": Entry("inagg_testbed.experiments.cli:experiment", "Carry out the claims of the papers."),
}

EPILOG = """\b
Exit status: 0; 1 for a failure; 2 for wrong usage; others as a command says.
The shell completes commands, options and names of jobs after this line in
~/.bashrc (zsh: zsh_source; fish: fish_source):
  eval "$(_INAGG_COMPLETE=bash_source inagg)"
"""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + 2  # as a shell reports a process that SIGINT (2) ended


def with_hint(error: click.ClickException) -> click.ClickException:
    """Return ``error``; if it is of a value that is none of a few, with the nearest of them."""
    if not isinstance(error, click.BadParameter) or error.param is None:
        return error
    kind = error.param.type
    if isinstance(kind, click.Choice) and (said := re.match(r"'(.*)' is not one of ", error.message)):
        message = error.message + did_you_mean(said[1], map(str, kind.choices))
        return click.BadParameter(message, error.ctx, error.param, error.param_hint)
    return error


def print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version  # loads the standard library's email, which no other command needs

        click.echo(f"inagg {version('inagg')}")
        ctx.exit()


def make_root(entries: dict[str, Entry]) -> LazyGroup:
    """The root command over a table of subcommands."""

    @click.pass_context
    def before(ctx: click.Context) -> None:
        """Called by click when it knows the subcommand, before that is run."""
        if not entries[ctx.invoked_subcommand or ""].anywhere:
            need_working_folder(ctx)

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
        callback=before,
        params=[version],
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="In-network aggregation of gradients: the switch, its control, and a testbed for one machine.",
        epilog=EPILOG,
    )


def run(root: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return the exit status; errors are told on stderr.

    Raises what the subcommand raises, except what a user can act on: wrong usage, a missing extra, Ctrl-C.
    """
    try:
        # standalone_mode would end the process here, and with status 1 after Ctrl-C
        status = root.main(args=arguments, prog_name="inagg", standalone_mode=False)
    except click.ClickException as error:
        with_hint(error).show()
        return error.exit_code
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            return getattr(abort.__context__, "exit_code", EXIT_INTERRUPTED)
        click.echo("Aborted.", err=True)
        return EXIT_ERROR
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = f" for {error.filename}" if error.filename else ", to write what was asked for"
        click.echo(f"Error: there is no space left{where}", err=True)
        return EXIT_ERROR
    except MemoryError as error:
        click.echo(f"Error: there is not enough memory: {error}", err=True)
        return EXIT_ERROR
    except UnicodeEncodeError as error:
        if not any(0xDC80 <= ord(character) <= 0xDCFF for character in error.object):
            raise
        # Bytes of the command line that are no characters (PEP 383).
        where = "it is not UTF-8, or this locale is not: try LC_ALL=C.UTF-8"
        click.echo(f"Error: {error.object!a} cannot be read as text: {where}", err=True)
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF_MODULE:
            raise  # not an extra: the installation or the code is broken, and the traceback says where
        MissingExtra([missing]).show()
        return MissingExtra.exit_code
    except ImportError as error:
        from inagg_link.jit_off import JitOff  # late: most commands get by without what stands beside it

        if not isinstance(error, JitOff):
            raise
        click.echo(f"Error: {error}", err=True)
        return EXIT_ERROR
    return status if isinstance(status, int) else 0


def main() -> int:
    """Entry point of the console script `inagg`."""
    streams.make_sound()
    for sentence in misspelt(os.environ):
        click.echo(f"Warning: {sentence}", err=True)
    with terminated_like_ctrl_c():
        return run(make_root(COMMANDS))
