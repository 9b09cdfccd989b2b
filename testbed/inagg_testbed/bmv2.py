"""The target bmv2: `simple_switch_grpc` in the middle of a topology, driven by `inagg switch --target bmv2`.

It binds the switch's ends of the links itself. Control goes over the management network, beside them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inagg_switch.p4 import P4RUNTIME_PORT, THRIFT_PORT
from inagg_switch.p4.builds import FLAT, builds
from inagg_switch.p4.network import Host, Network, mac_number, network_toml
from inagg_wire.layout import DATA_PORT

from .logged_process import LoggedProcess
from .switch_process import SwitchProcess
from .temporary import TemporaryFolder
from .topology.base import Node, Topology, TopologyError
from .topology.opening import SWITCH_BYTE, mac_of
from .topology.targets import CONTROL_PORT, Running

SWITCH = "simple_switch_grpc"
P4RUNTIME = f"127.0.0.1:{P4RUNTIME_PORT}"
LANES = 128
PROGRAM = f"nat8-{LANES}"


class Bmv2Process(LoggedProcess):
    """`simple_switch_grpc`, without a program, from the constructor to `stop`; a context manager.

    ``ports``: the interfaces, by port. ``p4runtime``: what it listens on, host:port or unix:PATH. It is killed when the
    thread that made it ends. Raises `TopologyError` if it is not installed.
    """

    def __init__(self, node: Node, ports: Sequence[str], p4runtime: str = P4RUNTIME) -> None:
        if shutil.which(SWITCH) is None:
            raise TopologyError(
                f"{SWITCH} is not on PATH. It comes with the bmv2 switch: https://github.com/p4lang/behavioral-model "
                "(on Ubuntu the package p4lang-bmv2 of https://download.opensuse.org/repositories/home:/p4lang). If it "
                'is on yours and not on that of sudo: sudo env "PATH=$PATH" inagg ...'
            )
        super().__init__("bmv2")
        interfaces = [word for port, name in enumerate(ports) for word in ("-i", f"{port}@{name}")]
        command = [SWITCH, "--no-p4", "--device-id", "0", "--thrift-port", str(THRIFT_PORT), *interfaces]
        command += ["--", "--grpc-server-addr", p4runtime]
        self._start(node.command(command), node.environment())

    @property
    def directory(self) -> Path:
        """It writes files where it runs."""
        return self.folder

    def check(self) -> None:
        """Raise `TopologyError`, with what it printed, if it has ended. (Clients wait until it serves.)"""
        if self.process.poll() is not None:
            raise TopologyError(f"{SWITCH} has ended:\n{self.printed()}")


def program_for(format_name: str) -> str:
    """The program of `LANES` lanes that adds up a job format. Raises `TopologyError` if there is none."""
    for name, build in builds().items():
        if build.role == FLAT and build.lanes == LANES and format_name in build.formats:
            return name
    raise TopologyError(f"no P4 program adds up {format_name!r}")


def network_of(topology: Topology) -> Network:
    """Return what is plugged in where: rank k on port k."""
    hosts = tuple(Host(node.host, mac_number(mac_of(rank + 1)), rank) for rank, node in enumerate(topology.workers))
    return Network(topology.switch.host, mac_number(mac_of(SWITCH_BYTE)), hosts, DATA_PORT)


def ruler(topology: Topology, network: Path, options: Sequence[str]) -> SwitchProcess:
    """`inagg switch` for the bmv2 in the middle of ``topology``, which a file describes. Raises RuntimeError, with what
    it printed, if it does not start."""
    words = ["--target", "bmv2", "--p4runtime", P4RUNTIME, "--thrift", f"127.0.0.1:{THRIFT_PORT}"]
    words += ["--network", str(network), "--insecure", *options]
    control = f"{topology.switch.management}:{CONTROL_PORT}"
    return SwitchProcess(*words, control=control, data=None, node=topology.switch)


@contextmanager
def start(topology: Topology, options: Sequence[str] = ()) -> Iterator[Running]:
    """A bmv2 switch in the middle of ``topology`` (wiring "ports") while the context lasts.

    ``options`` are those of `inagg switch`; without ``--program`` it is `PROGRAM`. Raises `TopologyError`.
    """
    node = topology.switch
    if node.namespace is None:
        raise TopologyError("bmv2 binds network interfaces, so it needs links; give --link none or a rate, as root")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryFolder("bmv2")))
        description = folder / "network.toml"
        description.write_text(network_toml(network_of(topology)))
        bmv2 = stack.enter_context(Bmv2Process(node, node.interfaces))
        if "--program" not in options:
            options = ["--program", PROGRAM, *options]
        try:
            switch = stack.enter_context(ruler(topology, description, options))
        except RuntimeError as error:
            bmv2.check()
            raise TopologyError(str(error)) from None
        yield Running(switch.control, switch.data, switch.process.pid)
