"""The command `inagg switch`: its options and its help."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from inagg_wire.layout import UDP_PAYLOAD_BYTES_MAX

from ..p4 import TARGETS
from .new_files import NewFile
from .sections import FILE, LOOPBACK, PROBABILITY, SECONDS, Number, SectionedCommand, in_section

P4 = "P4 switches (--target bmv2 or tofino), which run elsewhere"
TREE = "A tree of switches: workers of several racks, more than 32 workers"
FAULTS = "Faults, for experiments: probabilities per datagram and direction"
SHARDS_MAX: Final = 1024


def power_of_two(_context: click.Context, _parameter: click.Parameter, value: int | None) -> int | None:
    """Refuse what no shard can have."""
    if value is not None and value & (value - 1):
        raise click.BadParameter(f"{value} is no power of two; choose {1 << value.bit_length()}, for example")
    return value


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
@in_section(
    "Target",
    "--target",
    type=click.Choice(("software", *TARGETS)),
    default="software",
    show_default=True,
    help="What adds up: processes of this command, or a P4 switch that runs our program. The Tofino driver and program "
    "have never been tried on hardware.",
)
@in_section(
    "Addresses",
    "--listen",
    default=LOOPBACK,
    show_default=True,
    metavar="HOST:PORT",
    help="TCP address of the control service, which workers and commands are told. Port 0: any free one.",
)
@in_section(
    "Addresses",
    "--data",
    metavar="HOST[:PORT]",
    help="UDP address of the first shard; the others take the next ports. Default: the host of --listen and port "
    "47101 (any free ones if --listen has port 0). 0.0.0.0 and [::] take data at all addresses of this machine.",
)
@in_section(
    "Addresses",
    "--metrics",
    is_flag=False,
    flag_value="127.0.0.1:47099",
    metavar="[HOST:PORT]",
    help="Serve metrics for Prometheus; without a value on 127.0.0.1:47099. Default: no metrics.",
)
@in_section(
    "Addresses",
    "--web",
    is_flag=False,
    flag_value="127.0.0.1:47098",
    metavar="[HOST:PORT]",
    help="Serve the live view, a page for a browser; without a value on 127.0.0.1:47098. It asks for the switch's "
    "secret, if there is one.  [default: no live view]",
)
@in_section(
    "Addresses",
    "--ready-file",
    type=NewFile(replaces=True),
    metavar="FILE",
    help="Write the addresses as JSON to FILE when the switch serves, and remove FILE when it stops. For programs "
    "that start a switch with port 0.",
)
@in_section(
    TREE,
    "--parent",
    metavar="HOST[:PORT]",
    help="Control service of the switch above, which may have a parent itself. Up to 32 switches below each, and three "
    "levels. The root alone takes jobs; this switch passes on what its workers and commands ask.",
)
@in_section(TREE, "--name", metavar="NAME", help="Of this switch in the tree, such as rack3.  [default: the host's]")
@in_section(
    TREE,
    "--parent-ca",
    type=FILE,
    metavar="FILE",
    help="Authority that signed the parent's certificate; with TLS. This switch shows it --tls-cert.",
)
@in_section(
    "Size",
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    default=1,
    show_default=True,
    help="Data planes, each with a process (a core), a port and slots of its own.",
)
@in_section(
    "Size",
    "--slots",
    type=click.IntRange(2, 1 << 24),
    callback=power_of_two,
    help="Slots of each shard, a power of two. A job takes twice its window.  [default: 65536; fewer if datagrams "
    "are larger, 8192 on loopback]",
)
@in_section(
    "Size",
    "--datagram-bytes",
    type=click.IntRange(56, UDP_PAYLOAD_BYTES_MAX),
    help="Most UDP payload of a datagram: the MTU, on the whole way to every worker, less 28. Jumbo frames of 9000 "
    "bytes: 8972. Jobs of nat8 and fix32 that do not say get blocks as large.  [default: 1472; 13101 on loopback]",
)
@in_section(
    "Size",
    "--offload/--no-offload",
    default=True,
    show_default=True,
    help="Use the kernel's UDP_SEGMENT and UDP_GRO where it has them. Without, each datagram is a system call.",
)
@in_section(
    "Size",
    "--multicast",
    default="auto",
    show_default=True,
    metavar="auto|off|PREFIX",
    help="Send what is for all ranks of a job once, to a multicast group, instead of once to each. auto: where workers "
    "are on this machine (data on a loopback address) and it works. PREFIX: a multicast prefix such as 239.192.0.0/16 "
    "or ff15::8000:0/112; only for a network that carries multicast to every worker, since what it does not carry is "
    "missed and asked for again, which is very slow. Whoever can join the group can read the sums.",
)
@in_section(
    P4,
    "--p4runtime",
    metavar="HOST:PORT",
    help="bmv2: TCP address of the switch's P4Runtime server.  [default: 127.0.0.1:9559]",
)
@in_section(
    P4,
    "--bfrt",
    metavar="HOST[:PORT]",
    help="tofino: TCP address of the switch's BF Runtime server, bf_switchd.  [default: 127.0.0.1:50052]",
)
@in_section(
    P4,
    "--program",
    metavar="NAME",
    help="bmv2: the program to load, named for format and most lanes of its jobs: nat8-128 (all: "
    "p4/build/builds.json). tofino: the name by which bf_switchd runs p4/tofino/inagg.p4.  [default: inagg]",
)
@in_section(
    P4,
    "--network",
    type=FILE,
    metavar="FILE",
    help="TOML file: the switch's own address, and the address, MAC and port of each host (p4/README.md).",
)
@in_section(P4, "--device-id", type=click.IntRange(0), default=0, metavar="N", help="Of the switch.  [default: 0]")
@in_section(
    P4,
    "--thrift",
    metavar="HOST:PORT",
    help="bmv2: TCP address of its Thrift server, for `inagg why`: P4Runtime there cannot read the slots.",
)
@in_section(
    P4, "--p4-tls", is_flag=True, help="Reach the switch with TLS, and trust the authorities that the system trusts."
)
@in_section(P4, "--p4-ca", type=FILE, metavar="FILE", help="Authority that signed the switch's certificate; with TLS.")
@in_section(P4, "--p4-cert", type=FILE, metavar="FILE", help="Certificate to show to the switch.")
@in_section(P4, "--p4-key", type=FILE, metavar="FILE", help="Its key.")
@in_section(P4, "--p4-name", metavar="NAME", help="Name in the switch's certificate, if it is not that of its address.")
@in_section("Security", "--tls-cert", type=FILE, metavar="FILE", help="Certificate of the switch, in PEM.")
@in_section("Security", "--tls-key", type=FILE, metavar="FILE", help="Its key.")
@in_section(
    "Security",
    "--client-ca",
    type=FILE,
    metavar="FILE",
    help="Serve only those who show a certificate that one of these authorities signed (mutual TLS).",
)
@in_section(
    "Security",
    "--secret-file",
    type=FILE,
    metavar="FILE",
    help="File with a secret that all callers must know, or with a line `name: secret` for each of several. SIGHUP has "
    "it read again, and the certificates. Without it: the variable INAGG_SECRET.",
)
@in_section(
    "Security",
    "--operator",
    multiple=True,
    metavar="NAME",
    help="Who may evict jobs and drain, by the name of a secret or in a certificate (repeatable). Where nobody has a "
    "name, everybody may.  [default: operator]",
)
@in_section(
    "Security", "--insecure", is_flag=True, help="Serve without TLS on an address that other machines can reach."
)
@in_section(
    "Limits",
    "--heartbeat-limit",
    type=SECONDS,
    metavar="SECONDS",
    help="Silence after which a rank counts as failed, for jobs that do not say.  [default: 10]",
)
@in_section(
    "Limits",
    "--rejoin-limit",
    type=Number(0.0),
    metavar="SECONDS",
    help="How long a job waits for ranks that failed, before it ends, for jobs that do not say.  [default: 60]",
)
@in_section(
    "Limits",
    "--join-timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="Longest wait for the other ranks to join.  [default: 300]",
)
@in_section(
    "Limits",
    "--stall-after",
    type=SECONDS,
    metavar="SECONDS",
    help="How long a slot may wait before that is told to the ranks and the log.  [default: 5]",
)
@in_section(
    "Limits",
    "--poll-interval",
    type=SECONDS,
    metavar="SECONDS",
    help="How often the shards' counters are read: the age of metrics.  [default: 1]",
)
@in_section(
    "Limits", "--jobs-max", type=click.IntRange(1, 65534), metavar="N", help="Most jobs at a time.  [default: 1024]"
)
@in_section(
    "Limits",
    "--quota-jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Most jobs at a time of each caller, by the name of his secret or in his certificate.  [default: all]",
)
@in_section(
    "Limits",
    "--quota-slots",
    type=click.IntRange(1),
    metavar="N",
    help="Most slots on each shard of each caller.  [default: all]",
)
@in_section(
    "Limits",
    "--quota-watches",
    type=click.IntRange(1),
    metavar="N",
    help="Most open watches of each caller; a rank has one.  [default: any number]",
)
@in_section(
    "Limits",
    "--heartbeat-limit-max",
    type=SECONDS,
    metavar="SECONDS",
    help="The longest heartbeat limit that a job may ask for.  [default: 86400]",
)
@in_section(
    "Limits",
    "--rejoin-limit-max",
    type=SECONDS,
    metavar="SECONDS",
    help="The longest rejoin limit that a job may ask for.  [default: 86400]",
)
@in_section(
    "Limits",
    "--shard-restarts",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    help="How often in a minute shards that died are started again, before the switch ends.  [default: 5]",
)
@in_section(
    "Limits",
    "--drain",
    type=Number(0.0),
    metavar="SECONDS",
    help="How long running jobs may go on after the first signal to stop.  [default: 20]",
)
@in_section(
    "Log",
    "--log-format",
    type=click.Choice(("human", "json")),
    default="human",
    show_default=True,
    help="Lines for people, or one JSON object a line (then nothing is printed on standard output).",
)
@in_section(
    "Log",
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="The least that is logged.",
)
@in_section(
    "Log",
    "--capture",
    type=NewFile(),
    metavar="FILE",
    help="Record the datagrams of the first shard as pcap, for Wireshark, compressed if FILE ends with .gz; those of "
    "shard 1 go to FILE with .shard1 before its suffix, and so on.",
)
@in_section(
    "Log",
    "--record",
    type=NewFile(),
    metavar="FILE",
    help="Keep what the first shard takes in and gives out, with its jobs and their seeds, for `inagg replay FILE`. "
    "Unlike a capture it has what faults have left. Compressed if FILE ends with .gz.",
)
@in_section(
    "Log",
    "--capture-limit",
    type=Number(0.0, above=True),
    default=1024.0,
    metavar="MB",
    help="Most that each shard records; what comes later is not recorded.  [default: 1024]",
)
@in_section(FAULTS, "--loss", type=PROBABILITY, default=0.0, metavar="P", help="The network loses it.")
@in_section(FAULTS, "--duplicate", type=PROBABILITY, default=0.0, metavar="P", help="It arrives twice.")
@in_section(
    FAULTS,
    "--reorder",
    type=PROBABILITY,
    default=0.0,
    metavar="P",
    help="It is held back for up to 1 ms, so that others overtake it.",
)
@in_section(
    FAULTS,
    "--corrupt",
    type=PROBABILITY,
    default=0.0,
    metavar="P",
    help="A bit flips on the way: the UDP checksum is wrong, and it is dropped.",
)
@in_section(
    FAULTS,
    "--fault-seed",
    type=click.IntRange(0, (1 << 32) - 1),
    metavar="N",
    help="Repeat the faults of a run. Without it one is drawn, and told.",
)
def switch(**options: Any) -> int:
    """Run an aggregating switch: workers send it their gradients, it sends back the sums.

    It serves any number of jobs at a time, each with slots of its own. What it says about them: `inagg jobs`, `inagg
    top`, `inagg why JOB`, and the page of --web.
    """
    from .. import logs
    from .addresses import SettingsError
    from .serve import serve
    from .settings import settings_from

    try:
        settings = settings_from(options, os.environ.get("INAGG_SECRET") or None)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    logs.configure(options["log_format"], options["log_level"])
    return serve(settings)
