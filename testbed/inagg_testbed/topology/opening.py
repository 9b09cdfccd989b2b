"""Make a topology, keep it while it is used, and remove it whatever happens."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inagg.signals import terminated_like_ctrl_c
from inagg_link.signals import Deferred
from inagg_wire.formats import CHILDREN_MAX

from . import namespaces
from .base import MANAGEMENT_PORT, Node, Topology, TopologyError, Wiring
from .link import LinkSpec
from .processes import Process, end_all, processes_of
from .state import PREFIX, State, check_name

WORKERS_MAX = 128  # so a byte of an address is enough
NETWORK, MANAGEMENT = "10.77.0", "10.78.0"
"""The first three bytes of addresses on the links, and beside them; nobody outside our namespaces sees them."""
SWITCH_BYTE = 254
RACK_BYTE = 200
RACKS_MAX = 8
TRUNK = "trunk"
BRIDGE = "br0"
MANAGEMENT_BRIDGE = "mgmt"
PORT = "eth0"


def mac_of(byte: int) -> str:
    """The MAC address of the node whose address ends with ``byte``: locally administered, and readable."""
    return f"02:00:0a:4d:00:{byte:02x}"


def namespaces_of(name: str, workers: int, racks: int) -> tuple[str, ...]:
    """Network namespaces of a testbed with links: of the switch, of the leaves, and of the workers."""
    nodes = ["switch", *(f"rack{k}" for k in range(racks)), *(f"w{k}" for k in range(workers))]
    return tuple(f"{PREFIX}{name}-{node}" for node in nodes)


def plan(
    name: str,
    mark: str,
    workers: int,
    link: LinkSpec | None,
    wiring: Wiring,
    racks: int = 0,
    trunk: LinkSpec | None = None,
) -> Topology:
    """Return the topology that `build` makes, or, without a link, this machine as it is."""
    if link is None:
        here = [Node(f"rack{k}", "127.0.0.1", "127.0.0.1", "lo", None, mark) for k in range(racks)]
        nodes = [Node(f"w{rank}", "127.0.0.1", "127.0.0.1", "lo", None, mark) for rank in range(workers)]
        switch = Node("switch", "127.0.0.1", "127.0.0.1", "lo", None, mark)
        return Topology(name, tuple(nodes), switch, None, wiring, tuple(here), None)
    control = MANAGEMENT if wiring == "ports" else NETWORK
    of_switch, *others = namespaces_of(name, workers, racks)
    nodes = [
        Node(f"w{k}", f"{NETWORK}.{k + 1}", f"{control}.{k + 1}", PORT, namespace, mark)
        for k, namespace in enumerate(others[racks:])
    ]
    ends = tuple(node.name for node in nodes) if wiring == "ports" else ()
    addresses = f"{NETWORK}.{SWITCH_BYTE}", f"{control}.{SWITCH_BYTE}"
    switch = Node("switch", *addresses, BRIDGE if not ends else MANAGEMENT_BRIDGE, of_switch, mark, ends)
    hosts = [f"{NETWORK}.{RACK_BYTE + k}" for k in range(racks)]
    leaves = [
        Node(f"rack{k}", host, host, BRIDGE, namespace, mark)
        for k, (host, namespace) in enumerate(zip(hosts, others, strict=False))
    ]
    return Topology(name, tuple(nodes), switch, link, wiring, tuple(leaves), trunk)


def build(topology: Topology) -> None:
    """Make the namespaces and links that a plan names. Raises `TopologyError`."""
    switch = topology.switch.namespace
    if switch is None or topology.link is None:
        return
    bare = topology.wiring == "ports"
    try:
        namespaces.create(switch)
        if bare:
            namespaces.add_bridge(switch, MANAGEMENT_BRIDGE, topology.switch.management)
        else:
            namespaces.add_bridge(switch, BRIDGE, topology.switch.host)
        for rack in topology.racks:
            assert rack.namespace is not None
            namespaces.create(rack.namespace)
            namespaces.add_bridge(rack.namespace, BRIDGE, rack.host)
            namespaces.add_trunk(rack.namespace, TRUNK, switch, rack.name, bridge=BRIDGE)
            for namespace, interface in ((rack.namespace, TRUNK), (switch, rack.name)):
                namespaces.shape(namespace, interface, topology.trunk or topology.link)
        for rank, node in enumerate(topology.workers):
            assert node.namespace is not None
            namespaces.create(node.namespace)
            bridge = None if bare else BRIDGE
            macs = {"mac": mac_of(rank + 1), "peer_mac": mac_of(0x80 + rank)}
            above = topology.racks[topology.rack_of(rank)].namespace if topology.racks else switch
            assert above is not None
            namespaces.add_link(node.namespace, PORT, node.host, above, node.name, bridge=bridge, **macs)
            if bare:
                _add_management(topology, rank)
            for namespace, interface in ((node.namespace, PORT), (above, node.name)):
                if bare:
                    namespaces.no_offloads(namespace, interface)
                namespaces.shape(namespace, interface, topology.link)
    except (OSError, LookupError) as error:
        raise TopologyError(f"cannot make the links: {error}") from error


def _add_management(topology: Topology, rank: int) -> None:
    """The network beside the links, and who is where on a link whose other end answers no ARP."""
    node, switch = topology.workers[rank], topology.switch
    assert node.namespace is not None and switch.namespace is not None
    namespaces.add_link(
        node.namespace, MANAGEMENT_PORT, node.management, switch.namespace, f"m{rank}", bridge=MANAGEMENT_BRIDGE,
        mac=f"02:00:0a:4e:00:{rank + 1:02x}", peer_mac=f"02:00:0a:4e:01:{rank + 1:02x}",
    )  # fmt: skip
    others = [(other.host, mac_of(k + 1)) for k, other in enumerate(topology.workers) if k != rank]
    namespaces.add_neighbours(node.namespace, PORT, [(switch.host, mac_of(SWITCH_BYTE)), *others])


def require_root(wiring: Wiring) -> None:
    """See `namespaces.require_root`."""
    if wiring == "ports":
        namespaces.require_root("take the software switch, which needs none (--target software)")
    else:
        namespaces.require_root()


def tear_down(state: State) -> list[Process]:
    """End the processes of a testbed, remove its namespaces and its file; the processes that still ran."""
    ended = end_all(lambda: processes_of(state.mark, state.namespaces))
    for name in state.namespaces:
        namespaces.remove(name)
    state.forget()
    return ended


@contextmanager
def open_topology(
    workers: int,
    link: str | LinkSpec | None = None,
    *,
    name: str | None = None,
    wiring: Wiring = "bridge",
    racks: int = 0,
    trunk: str | LinkSpec | None = None,
    made_by: str | None = None,
    stays: bool = False,
) -> Iterator[Topology]:
    """``workers`` nodes and one for the switch: namespaces with a shaped link each or, without ``link``, loopback. With
    ``racks``, as many more for leaves, with a ``trunk`` each to the switch (as ``link`` if there is no such rate).

    At the end, and after any error, their processes are ended and all is removed. ``made_by``: the command that `inagg
    testbed status` tells of; this process's own, if there is none. ``stays``: whether it is one of `inagg testbed up`.
    Raises `TopologyError` without root, for a link that cannot be, for a name that is taken, and if the kernel lacks
    something.
    """
    most = min(max(1, racks) * CHILDREN_MAX, WORKERS_MAX)
    if not 1 <= workers <= most:
        raise TopologyError(
            f"{workers} workers: one switch serves 1 to {CHILDREN_MAX}, and racks {most} here (--racks)"
        )
    try:
        spec = LinkSpec.parse(link) if isinstance(link, str) else link
        trunk_spec = LinkSpec.parse(trunk) if isinstance(trunk, str) else trunk
    except ValueError as error:
        raise TopologyError(str(error)) from None
    if spec is not None:
        require_root(wiring)
    name = check_name(name or f"run-{os.getpid()}")
    if racks and (not 1 <= racks <= min(RACKS_MAX, workers) or wiring == "ports"):
        raise TopologyError(f"{racks} racks: choose 1 to {RACKS_MAX}, no more than workers, for the software switch")
    names = () if spec is None else namespaces_of(name, workers, racks)
    rates = {"link": spec and str(spec), "trunk": trunk_spec and str(trunk_spec)}
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if made_by is None else made_by
    about = {"workers": workers, "racks": racks, **rates, "wiring": wiring, "made_by": command, "stays": stays}
    state = State.new(name, names, about)
    topology = plan(name, state.mark, workers, spec, wiring, racks, trunk_spec)
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # the only one that may set handlers of signals
            stack.enter_context(terminated_like_ctrl_c())
        with Deferred():
            state.save(new=True)
            _refuse_foreign(state)
            stack.callback(_remove, state)
            if spec is not None:
                build(topology)
        yield topology


def _remove(state: State) -> None:
    with Deferred():
        tear_down(state)


def _refuse_foreign(state: State) -> None:
    """Raise `TopologyError` if there are namespaces of these names: they are not ours, since we have only now begun."""
    if foreign := set(state.namespaces) & set(namespaces.existing(PREFIX)):
        state.forget()  # else `down` would remove what is not ours
        raise TopologyError(
            f"the network namespace {min(foreign)} exists and no testbed is known to have made it. If nobody needs it: "
            f"ip netns delete {min(foreign)}"
        )


def reopen(state: State) -> Topology:
    """The topology of a testbed that stands."""
    about = state.about
    link, trunk = (None if about.get(key) is None else LinkSpec.parse(about[key]) for key in ("link", "trunk"))
    return plan(state.name, state.mark, about["workers"], link, about["wiring"], about.get("racks", 0), trunk)


def strays(states: list[State]) -> list[str]:
    """Namespaces with our prefix that belong to no testbed: somebody has removed the file."""
    known = {name for state in states for name in state.namespaces}
    return [name for name in namespaces.existing(PREFIX) if name not in known]


def perhaps_in_use(names: Sequence[str]) -> list[str]:
    """Return those of the namespaces, strays, that may be a testbed's that runs.

    All, for who is not root: he sees neither root's testbeds nor root's processes. For root, those of a testbed in one
    of whose namespaces a process lives: nobody needs to live in a worker's.
    """
    if os.geteuid() != 0:
        return list(names)
    no_mark = ""
    lived_in = {_testbed_of(name) for name in names if processes_of(no_mark, [name])}
    return [name for name in names if _testbed_of(name) in lived_in]


def _testbed_of(namespace: str) -> str:
    """The name of the testbed, with the prefix; those of nodes have no dash."""
    return namespace.rpartition("-")[0]
