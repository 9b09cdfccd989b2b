"""The command `inagg switch`: its options and its help."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click

from inagg_wire.layout import DATA_PORT, UDP_PAYLOAD_BYTES_1500, UDP_PAYLOAD_BYTES_LOOPBACK, UDP_PAYLOAD_BYTES_MAX

from ..control.policy import Policy
from ..defaults import ADDRESS, DRAIN_S, LOG_FORMATS, LOG_LEVELS, METRICS_ADDRESS, WEB_ADDRESS
from ..p4 import TARGETS
from .new_files import NewFile
from .sections import PROBABILITY, SECONDS, F, Number, SectionedCommand, Whole, file, in_section

P4 = "P4 switches (--target bmv2 or tofino), which run elsewhere"
TREE = "A tree of switches: workers of several racks, more than 32 workers"
FAULTS = "Faults, for experiments, in each direction"
SHARDS_MAX: Final = 1024
of_target, of_address, of_tree, of_size, of_p4, of_guard, of_log, of_fault = (
    partial(in_section, section) for section in ("Target", "Addresses", TREE, "Size", P4, "Security", "Log", FAULTS)
)
POLICY: Final = Policy()


def power_of_two(_context: click.Context, _parameter: click.Parameter, value: int | None) -> int | None:
    """Refuse what no shard can have."""
    if value is not None and value & (value - 1):
        raise click.BadParameter(f"{value} is no power of two; choose {1 << value.bit_length()}, for example")
    return value


def limit(name: str, kind: click.ParamType[Any], help: str, usual: object = None, **more: Any) -> Callable[[F], F]:
    """The option of a limit. ``usual``: the default, to tell; None: it is that of a field of `Policy`."""
    timed = isinstance(kind, Number)
    if usual is None:
        usual = f"{getattr(POLICY, name[2:].replace('-', '_') + '_s' * timed):g}"
    help = f"{help}  [default: {usual}]"
    return in_section("Limits", name, type=kind, metavar="SECONDS" if timed else "N", help=help, **more)


def probability(name: str, help: str) -> Callable[[F], F]:
    """The option of a fault."""
    return in_section(FAULTS, name, type=PROBABILITY, default=0.0, metavar="P", help=help)


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Examples:
  inagg switch                            for this machine, no questions asked
  inagg switch --web                      the same, with a page that shows it
  inagg switch --shards 4 --metrics       four cores, and metrics on loopback
  inagg switch --listen 10.0.0.1:47100 \\
      --tls-cert switch.pem --tls-key switch.key --secret-file secret
                                          for other machines
  inagg switch --listen 10.0.0.1:47100 --insecure
                                          the same in a network that you trust
  inagg switch --parent root:47100 --name rack3 --listen 0.0.0.0 --insecure
                                          a leaf of a tree, for a rack
  inagg switch --loss 0.05 --fault-seed 7
                                          a bad network, on purpose
  inagg switch --target bmv2 --program nat8-128 --network network.toml
                                          rule a bmv2 switch on this machine
  inagg switch --target tofino --bfrt 10.0.0.2 --network network.toml
                                          rule a Tofino that runs our program
                                          (never tried on hardware)

\b
Signals: the first Ctrl-C or SIGTERM takes no new jobs and gives those that
run the time of --drain to end; the second stops at once. The exit status is
0 then, 1 if it could not start or lost a shard, 2 for wrong usage.
Standard output has the lines for people, standard error the log, and those
lines too where standard output cannot be written.
""",
)
@of_target(
    "--target",
    type=click.Choice(("software", *TARGETS)),
    default="software",
    show_default=True,
    help="What adds up: processes of this command, or a P4 switch that runs our program. The Tofino driver and program "
    "have never been tried on hardware.",
)
@of_address(
    "--listen",
    default=ADDRESS,
    show_default=True,
    metavar="HOST:PORT",
    help="TCP address of the control service: workers have it as INAGG_SWITCH, commands as --switch. Port 0: any free "
    "one. 0.0.0.0 and [::] are all addresses of this machine, IPv4 and IPv6.",
)
@of_address(
    "--data",
    metavar="HOST[:PORT]",
    help="UDP address of the first shard; the others take the next ports. Default: the host of --listen and port "
    f"{DATA_PORT} (any free ones if --listen has port 0). 0.0.0.0 takes data at all IPv4 addresses of this machine, "
    "[::] at all IPv6 ones; nothing takes both.",
)
@of_address(
    "--metrics",
    is_flag=False,
    flag_value=METRICS_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve metrics for Prometheus; without a value on {METRICS_ADDRESS}. 0.0.0.0: all IPv4 addresses; [::]: "
    "all, IPv4 and IPv6. A leaf of a tree has few: its certificate, and whom it refused; all else is in the root's. "
    "Default: no metrics.",
)
@of_address(
    "--web",
    is_flag=False,
    flag_value=WEB_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve the live view, a page for a browser; without a value on {WEB_ADDRESS}. HOST "
    "is as for --metrics. It asks for the switch's secret, if there is one.  [default: no live view]",
)
@of_address(
    "--ready-file",
    type=NewFile(replaces=True),
    metavar="FILE",
    help="Write the addresses as JSON to FILE when the switch serves, and remove FILE when it stops. For programs "
    "that start a switch with port 0.",
)
@of_tree(
    "--parent",
    metavar="HOST[:PORT]",
    help="Control service of the switch above, which may have a parent itself. Up to 32 switches below each, and three "
    "levels. The root alone takes jobs; this switch passes on what its workers and commands ask.",
)
@of_tree("--name", metavar="NAME", help="Name of this switch in the tree, such as rack3.  [default: the host's]")
@file(
    TREE,
    "--parent-ca",
    "Authority that signed the parent's certificate; with TLS. This switch shows it --tls-cert.",
    later=True,
)
@file(
    TREE,
    "--parent-secret-file",
    "File with the secret of this switch for its parent, read again at SIGHUP. Without it: the variable INAGG_SECRET, "
    "as it is at the start.",
    later=True,
)
@of_size(
    "--shards",
    type=Whole(1, SHARDS_MAX),
    default=1,
    show_default=True,
    help="Data planes, each with a process (a core), a port and slots of its own; as many at all switches of a tree.",
)
@of_size(
    "--slots",
    type=Whole(2, 1 << 24),
    callback=power_of_two,
    help="Slots of each shard, a power of two. A job takes twice its window.  [default: 65536; fewer if datagrams "
    "are larger, 8192 on loopback]",
)
@of_size(
    "--datagram-bytes",
    type=Whole(56, UDP_PAYLOAD_BYTES_MAX),
    help="Most UDP payload of a datagram: the MTU, on the whole way to every worker, less 28. Jumbo frames of 9000 "
    "bytes: 8972. Jobs of nat8 and fix32 that do not say get blocks as large, of a multiple of 8 lanes."
    f"  [default: {UDP_PAYLOAD_BYTES_1500}; {UDP_PAYLOAD_BYTES_LOOPBACK} on loopback]",
)
@of_size(
    "--offload/--no-offload",
    default=True,
    show_default=True,
    help="Use the kernel's UDP_SEGMENT and UDP_GRO where it has them. Without, each datagram is a system call.",
)
@of_size(
    "--multicast",
    default="auto",
    show_default=True,
    metavar="auto|off|PREFIX",
    help="Send what is for all ranks of a job once, to a multicast group, instead of once to each. auto: where workers "
    "are on this machine (data on a loopback address) and it works. PREFIX: a multicast prefix such as 239.192.0.0/16 "
    "or ff15::8000:0/112; only for a network that carries multicast to every worker, since what it does not carry is "
    "missed and asked for again, which is very slow. Whoever can join the group can read the sums.",
)
@of_p4(
    "--p4runtime",
    metavar="HOST:PORT",
    help="bmv2: TCP address of the switch's P4Runtime server.  [default: 127.0.0.1:9559]",
)
@of_p4(
    "--bfrt",
    metavar="HOST[:PORT]",
    help="tofino: TCP address of the switch's BF Runtime server, bf_switchd.  [default: 127.0.0.1:50052]",
)
@of_p4(
    "--program",
    metavar="NAME",
    help="bmv2: the program to load, named for format and most lanes of its jobs: nat8-128 (all: "
    "p4/build/builds.json). tofino: the name by which bf_switchd runs p4/tofino/inagg.p4.  [default: inagg]",
)
@file(
    P4, "--network", "TOML file: the switch's own address, and the address, MAC and port of each host (p4/README.md)."
)
@of_p4("--device-id", type=Whole(0), default=0, metavar="N", help="Device id of the switch.  [default: 0]")
@of_p4(
    "--thrift",
    metavar="HOST:PORT",
    help="bmv2: TCP address of its Thrift server, for `inagg why`: P4Runtime there cannot read the slots.",
)
@of_p4("--p4-tls", is_flag=True, help="Reach the switch with TLS, and trust the authorities that the system trusts.")
@file(P4, "--p4-ca", "Authority that signed the switch's certificate; with TLS.")
@file(P4, "--p4-cert", "Certificate to show to the switch.")
@file(P4, "--p4-key", "Private key of --p4-cert.")
@of_p4("--p4-name", metavar="NAME", help="Name in the switch's certificate, if it is not that of its address.")
@file("Security", "--tls-cert", "Certificate of the switch, in PEM, and after it the intermediate ones.", later=True)
@file("Security", "--tls-key", "Private key of --tls-cert, without a passphrase.", later=True)
@file(
    "Security",
    "--client-ca",
    "Serve only those who show a certificate that one of these authorities signed (mutual TLS).",
    later=True,
)
@file(
    "Security",
    "--secret-file",
    "File with a secret that all callers must know, or with lines `name: secret`; a name may have several, all as "
    "good. SIGHUP has it read again, and the certificates. Without it: the variable INAGG_SECRET.",
    later=True,
)
@of_guard(
    "--operator",
    multiple=True,
    metavar="NAME",
    help="Who may evict jobs and drain, by the name of a secret or in a certificate (repeatable). Where nobody has a "
    "name, everybody may.  [default: operator]",
)
@of_guard("--insecure", is_flag=True, help="Serve without TLS on an address that other machines can reach.")
@limit("--heartbeat-limit", SECONDS, "Silence after which a rank counts as failed, for jobs that do not say.")
@limit(
    "--rejoin-limit",
    Number(0.0),
    "How long a job waits for ranks that failed, before it ends, for jobs that do not say.",
)
@limit("--join-timeout", SECONDS, "Longest wait for the other ranks to join.")
@limit("--stall-after", SECONDS, "How long a slot may wait before that is told to the ranks and the log.")
@limit("--poll-interval", SECONDS, "How often the shards' counters are read: the age of metrics.")
@limit("--jobs-max", Whole(1, 65534), "Most jobs at a time.")
@limit(
    "--quota-jobs",
    Whole(1),
    "Most jobs at a time of each caller, by the name of their secret or in their certificate.",
    "all",
)
@limit("--quota-slots", Whole(1), "Most slots on each shard of each caller.", "all")
@limit("--quota-watches", Whole(1), "Most open watches of each caller; a rank has one.", "any number")
@limit("--heartbeat-limit-max", SECONDS, "The longest heartbeat limit that a job may ask for.")
@limit("--rejoin-limit-max", SECONDS, "The longest rejoin limit that a job may ask for.")
@limit(
    "--shard-restarts",
    Whole(0),
    "How often in a minute shards that died are started again, before the switch ends.",
    5,
    default=5,
)
@limit("--drain", Number(0.0), "How long running jobs may go on after the first signal to stop.", f"{DRAIN_S:g}")
@of_log(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="human",
    show_default=True,
    help="Lines for people, or one JSON object a line (then nothing is printed on standard output).",
)
@of_log(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="The least that is logged.",
)
@of_log(
    "--capture",
    type=NewFile(),
    metavar="FILE",
    help="Record the datagrams of the first shard as pcap, for Wireshark, compressed if FILE ends with .gz; those of "
    "shard 1 go to FILE with .shard1 before its suffix, and so on.",
)
@of_log(
    "--record",
    type=NewFile(),
    metavar="FILE",
    help="Keep what the first shard takes in and gives out, with its jobs and their seeds, for `inagg replay FILE`. "
    "Unlike a capture it has what faults have left. Compressed if FILE ends with .gz.",
)
@of_log(
    "--capture-limit",
    type=Number(0.0, min_open=True),
    default=1024.0,
    metavar="MB",
    help="Most that each shard records; what comes later is not recorded.  [default: 1024]",
)
@probability("--loss", "Probability that the network loses a datagram.")
@probability("--duplicate", "Probability that a datagram arrives twice.")
@probability("--reorder", "Probability that a datagram is held back for up to 1 ms, so that others overtake it.")
@probability(
    "--corrupt", "Probability that a bit of a datagram flips on the way: its UDP checksum is wrong, and it is dropped."
)
@of_fault(
    "--fault-seed",
    type=Whole(0, (1 << 32) - 1),
    metavar="N",
    help="Repeat the faults of a run. Without it one is drawn, and told.",
)
def switch(**options: Any) -> int:
    """Run an aggregating switch: workers send it their gradients, it sends back the sums.

    It serves any number of jobs at a time, each with slots of its own. What it says about them: `inagg jobs`, `inagg
    top`, `inagg why JOB`, and the page of --web.
    """
    from .. import logs
    from ..addresses import NotYet, SettingsError
    from .serve import serve
    from .settings import settings_from

    try:
        settings = settings_from(options, os.environ.get("INAGG_SECRET") or None)
    except NotYet as error:  # with status 1, not that of wrong usage: deploy/systemd starts it again
        raise click.ClickException(str(error)) from None
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    logs.configure(options["log_format"], options["log_level"])
    return serve(settings)
