"""Network namespaces, veth pairs and shaped links, made through pyroute2.

A namespace is entered by threads made for the purpose, which end there: the rest of the process stays where it is, and
nothing has to fork. Everything that is made lies in our own namespaces, so removing those removes it all.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from .base import TopologyError
from .launch import CLONE_NEWNET, NAMESPACES, enter_namespace
from .link import LinkSpec

T = TypeVar("T")

PREFIX_BITS = 24
OFFLOADS = (
    "tx-checksum-ip-generic",
    "tx-generic-segmentation",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "rx-gro",
)
"""Features (ethtool -k) that a program which reads whole frames from an interface cannot stand: packets longer than the
MTU, and checksums that are not computed yet."""

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21  # include/uapi/linux/capability.h


def require_root(instead: str = "leave --link out: then all runs over loopback, unshaped") -> None:
    """Raise `TopologyError`, which says what to do, unless this process may make network namespaces. ``instead``: what
    can be done without root."""
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff"))
    if not (effective >> CAP_NET_ADMIN & effective >> CAP_SYS_ADMIN & 1):
        raise TopologyError(
            "network namespaces and shaped links need root. Run the same command with sudo "
            f'(sudo "$(command -v inagg)" ...), or {instead}'
        )


def create(name: str) -> None:
    """Make a network namespace of this name, its loopback up. Raises `TopologyError`."""
    from pyroute2 import IPRoute, netns

    def unshare() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
        netns.attach(name, "thread-self")
        with IPRoute() as route:
            route.link("set", index=1, state="up")

    try:
        _in_thread(unshare)
    except OSError as error:
        raise TopologyError(f"cannot make the network namespace {name}: {error}") from error


def remove(name: str) -> bool:
    """Remove a namespace and, once its last process has ended, all that is in it; whether there was one.

    The links go at once, whoever still holds the namespace.
    """
    from pyroute2 import IPRoute, netns
    from pyroute2.netlink.exceptions import NetlinkError

    if not (NAMESPACES / name).exists():
        return False

    def remove_links() -> None:
        with IPRoute() as route:
            for link in route.get_links():
                if link["index"] != 1:
                    with suppress(NetlinkError):  # it went with its other end
                        route.link("del", index=link["index"])

    with suppress(OSError):  # a name without a namespace: made half
        run_inside(name, remove_links)
    netns.remove(name)
    return True


def add_bridge(namespace: str, name: str, address: str) -> None:
    """A bridge with an address."""
    from pyroute2 import IPRoute

    def add() -> None:
        with IPRoute() as route:
            route.link("add", ifname=name, kind="bridge")
            index = route.link_lookup(ifname=name)[0]
            route.addr("add", index=index, address=address, prefixlen=PREFIX_BITS)
            route.link("set", index=index, state="up")

    run_inside(namespace, add)


def add_link(
    worker: str, inner: str, address: str, switch: str, outer: str, *, bridge: str | None, mac: str, peer_mac: str
) -> None:
    """A veth pair: ``inner`` with an address in namespace ``worker``, ``outer`` in ``switch``, on a bridge or not."""
    from pyroute2 import IPRoute

    def add() -> None:
        with IPRoute() as route, (NAMESPACES / worker).open("rb") as peer:
            route.link(
                "add",
                ifname=outer,
                kind="veth",
                address=peer_mac,
                peer={"ifname": inner, "address": mac, "net_ns_fd": peer.fileno()},
            )
            index = route.link_lookup(ifname=outer)[0]
            joined = {} if bridge is None else {"master": route.link_lookup(ifname=bridge)[0]}
            route.link("set", index=index, state="up", **joined)

    def address_it() -> None:
        with IPRoute() as route:
            index = route.link_lookup(ifname=inner)[0]
            route.addr("add", index=index, address=address, prefixlen=PREFIX_BITS)
            route.link("set", index=index, state="up")

    run_inside(switch, add)
    run_inside(worker, address_it)


def add_trunk(rack: str, inner: str, switch: str, outer: str, *, bridge: str) -> None:
    """A veth pair between the bridges of two namespaces."""
    from pyroute2 import IPRoute

    def add() -> None:
        with IPRoute() as route, (NAMESPACES / rack).open("rb") as peer:
            ends = {"ifname": inner, "net_ns_fd": peer.fileno()}
            route.link("add", ifname=outer, kind="veth", peer=ends)

    def join(name: str) -> None:
        with IPRoute() as route:
            index = route.link_lookup(ifname=name)[0]
            route.link("set", index=index, state="up", master=route.link_lookup(ifname=bridge)[0])

    run_inside(switch, add)
    run_inside(switch, lambda: join(outer))
    run_inside(rack, lambda: join(inner))


def shape(namespace: str, interface: str, link: LinkSpec) -> None:
    """Give what leaves by an interface the rate of ``link`` (tc-tbf(8))."""
    from pyroute2 import IPRoute

    def add() -> None:
        with IPRoute() as route:
            index = route.link_lookup(ifname=interface)[0]
            route.tc(
                "add",
                "tbf",
                index=index,
                handle="1:",
                rate=round(link.bytes_per_s),
                burst=link.burst_bytes,
                limit=link.queue_bytes,
            )

    if link.rate_bits_per_s:
        run_inside(namespace, add)


def no_offloads(namespace: str, interface: str) -> None:
    """Let only whole, finished frames leave by an interface: no trains, no checksums to be computed later."""
    from pyroute2 import IPRoute
    from pyroute2.ethtool import Ethtool

    def switch_off() -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname=interface)[0], gso_max_segs=1)
        with Ethtool() as ethtool:
            features = ethtool.get_features(interface)
            for name in OFFLOADS:
                if name in features.features:
                    features.features[name].enable = False
            ethtool.set_features(interface, features)

    run_inside(namespace, switch_off)


def add_neighbours(namespace: str, interface: str, macs: Sequence[tuple[str, str]]) -> None:
    """Who has which address, for ever: where nobody answers ARP. ``macs``: pairs of IP and MAC address."""
    from pyroute2 import IPRoute

    def add() -> None:
        with IPRoute() as route:
            index = route.link_lookup(ifname=interface)[0]
            for address, mac in macs:
                route.neigh("add", ifindex=index, dst=address, lladdr=mac, state="permanent")

    run_inside(namespace, add)


def queue_drops(namespace: str, interface: str) -> int:
    """Packets that the queue of a shaped interface had no room for, since it was made; 0 if it has none."""
    from pyroute2 import IPRoute

    def read() -> int:
        with IPRoute() as route:
            index = route.link_lookup(ifname=interface)[0]
            stats = [qdisc.get_attr("TCA_STATS2") for qdisc in route.get_qdiscs(index=index)]
            queues = [s.get_attr("TCA_STATS_QUEUE") for s in stats if s is not None]
            return sum(queue["drops"] for queue in queues if queue is not None)

    return run_inside(namespace, read)


def run_inside(namespace: str, call: Callable[[], T]) -> T:
    """What ``call`` returns, or raises, on a thread in the namespace."""

    def enter_and_call() -> T:
        enter_namespace(namespace)
        return call()

    return _in_thread(enter_and_call)


def _in_thread(call: Callable[[], T]) -> T:
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="inagg-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def existing(prefix: str) -> list[str]:
    """The names of namespaces that begin with ``prefix``."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(NAMESPACES) if name.startswith(prefix))
    return []
