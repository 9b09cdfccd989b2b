"""The commands of the switch: their options and their help.

What they do stands in files of their own and is imported when a command runs, so that help is quick.

Standard output has what was asked for; the log and errors go to standard error. Exit status of `switch`: 0 when it was
told to stop, 1 if it could not start or lost a shard. Of the others: 0, or 1 if the switch cannot be asked (not
reachable, refused, no such job); `why` has 3 and 4 besides. Of all: 2 for wrong usage.
"""

from __future__ import annotations

import os
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from ..defaults import ADDRESS
from .sections import Number, SectionedCommand, Whole, all_of, file, in_section
from .switch_options import switch

# gRPC's core prints its own account of a failure, unless it finds this when it is imported: after this module.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["drain", "evict", "jobs", "switch", "top", "why"]

WHICH: Final = "Which switch"
client_options = all_of(
    in_section(
        WHICH,
        "--switch",
        envvar="INAGG_SWITCH",
        default=ADDRESS,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Control address of the switch, as `inagg switch` prints it; of several, with commas, the first that "
        "answers.",
    ),
    file(WHICH, "--secret-file", "File with the shared secret. Without it: the variable INAGG_SECRET."),
    in_section(
        WHICH,
        "--tls",
        is_flag=True,
        help="Encrypt, and trust the authorities that the system trusts. Implied by the options below.",
    ),
    file(
        WHICH,
        "--tls-ca",
        "Certificate of the authority that signed the switch's.",
        envvar="INAGG_CA",
        show_envvar=True,
    ),
    file(
        WHICH,
        "--tls-cert",
        "Certificate to show where the switch demands one.",
        envvar="INAGG_CERTIFICATE",
        show_envvar=True,
    ),
    file(WHICH, "--tls-key", "Private key of --tls-cert.", envvar="INAGG_KEY", show_envvar=True),
    in_section(
        WHICH,
        "--tls-name",
        metavar="NAME",
        help="Name in the switch's certificate, if it is not the host of --switch.",
    ),
)
"""The options that all commands have which ask a switch."""


def complete_job(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Called by click for a shell; see `job_names.complete_job`."""
    from .job_names import complete_job

    return complete_job(ctx, parameter, incomplete)


def named(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name, which a script gives whose variable is not set: every job begins with it."""
    if value == "":
        raise click.BadParameter("no job is named", ctx, parameter)
    return value


# ---------------------------------------------------------------------------------------------- jobs


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Examples:
  inagg jobs
  inagg jobs --switch 10.0.0.1:47100 --json | jq '.jobs[].spec.name'
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: jobs, and all ended ones it remembers.")
@client_options
def jobs(as_json: bool, **reach: Any) -> None:
    """List the jobs of a switch: what they are, what they do, who takes part, and which have ended lately."""
    from .connect import connected
    from .jobs_command import show_jobs

    with connected(**reach) as client:
        show_jobs(client, as_json)


# ---------------------------------------------------------------------------------------------- top


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Examples:
  inagg top                                live, until Ctrl-C
  inagg top --once                         one look, as tables
  inagg top train --json --interval 10     a JSON line every 10 seconds
  inagg top | tee top.log                  a line of name=value every second,
                                           in plain numbers

\b
ELEM/s     elements summed per second, each once however many workers
WAITING    slots whose sum lacks somebody, at this moment
DUP        contributions that came twice before the sum was complete
RESENT     results sent again to one worker, which had lost one
STALE      contributions for a block that the job has left behind

\b
Exit status: 0, also when Ctrl-C ends it, which is its usual end; 130 if that
comes before --once or --count are done.
""",
)
@click.argument("job", required=False, callback=named, shell_complete=complete_job)
@click.option("--once", is_flag=True, help="Measure over one interval, print tables (or JSON), and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line: counters, and rates per second.")
@click.option(
    "--interval",
    type=Number(0.1, 3600.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between looks.",
)
@click.option("--count", type=Whole(0), default=0, metavar="N", show_default=True, help="End after N looks; 0: never.")
@client_options
def top(job: str | None, once: bool, as_json: bool, interval: float, count: int, **reach: Any) -> None:
    """Watch the traffic of a switch and of its jobs, or of JOB alone (as much of its name as is unique): throughput,
    packets, what was lost, and each worker.

    On a terminal the picture is redrawn in place; elsewhere it is a line per interval. A switch that goes away is asked
    again until it is back; with --once, and with --count where there is no terminal, that is an error.
    """
    from .connect import connected
    from .job_names import resolve
    from .top import show_top

    with connected(**reach) as client:
        name = resolve(client, job) if job else ""
        show_top(client, job=name, as_json=as_json, once=once, interval_s=interval, count=count)


# ---------------------------------------------------------------------------------------------- why


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Examples:
  inagg why                 all jobs of the switch: those that wait
  inagg why train           one, by its name or what it alone begins with
  inagg why train --watch
  inagg why train || echo "it waits, is over, or cannot be asked"
  inagg why --json | jq -r 'select(.status == 4).job.spec.name'

\b
Exit status:
  0  the job runs, and nothing waits for longer than --over that is known (a
     Tofino, and bmv2 without --thrift, do not tell what their slots hold)
  1  the switch cannot be asked: not reachable, no such job
  2  wrong usage
  3  the job is over
  4  it waits: for ranks to join, for contributions, or a rank is silent
--watch ends with that of its last look, also when Ctrl-C ends it.
""",
)
@click.argument("job", required=False, callback=named, shell_complete=complete_job)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object a line, one for each job whether it waits or not: with its verdict, and the exit status "
    "that is its own. Without jobs: no line.",
)
@click.option(
    "--slots",
    type=Whole(1, 1024),
    default=16,
    show_default=True,
    metavar="N",
    help="List the N slots that wait longest.",
)
@click.option(
    "--over",
    type=Number(0.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="What a slot may wait before that counts: in a job that runs, some always wait for a moment.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Ask again and again, until the job is over or Ctrl-C; also while the switch is away.",
)
@click.option(
    "--interval",
    type=Number(0.1, 3600.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between questions of --watch.",
)
@client_options
def why(job: str | None, as_json: bool, slots: int, over: float, watch: bool, interval: float, **reach: Any) -> int:
    """Say why JOB waits, or each job that does: which slots wait for which ranks and for how long, which ranks are
    missing or silent, and what is the likeliest cause. As much of the name of JOB will do as is unique."""
    from .connect import connected
    from .job_names import resolve
    from .why import show_why

    with connected(**reach) as client:
        name = resolve(client, job, ended=True) if job else ""
        return show_why(client, name, as_json=as_json, slots=slots, over_s=over, watch=watch, interval_s=interval)


# ---------------------------------------------------------------------------------------------- evict, drain


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Example:
  inagg evict train --reason "the machine is needed"
""",
)
@click.argument("job", callback=named, shell_complete=complete_job)
@click.option("--reason", default="", metavar="TEXT", help="Why the job ends: its ranks are told.")
@client_options
def evict(job: str, reason: str, **reach: Any) -> None:
    """End JOB (as much of its name as is unique), whoever runs it: its ranks get an error that says so, and its slots
    are free. For operators."""
    from .connect import connected
    from .job_names import resolve

    with connected(**reach) as client:
        job = resolve(client, job)
        client.evict(job, reason)
    click.echo(f"job {job} has ended")


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Examples:
  inagg drain              before the switch is stopped or updated
  inagg drain --off        it takes new jobs again
""",
)
@click.option("--off", is_flag=True, help="Take new jobs again.")
@client_options
def drain(off: bool, **reach: Any) -> None:
    """Have a switch take no new jobs; those that run go on. For operators."""
    from .connect import connected

    with connected(**reach) as client:
        left = client.drain(off=off)
    if off:
        click.echo("the switch takes new jobs")
    else:
        click.echo(f"the switch takes no new jobs; {left} {'job goes' if left == 1 else 'jobs go'} on (inagg jobs)")
