"""Network namespaces, veth pairs and shaped links, made through pyroute2.

A namespace is entered by threads made for the purpose, which end there: the rest of the process stays where it is, and
nothing has to fork. Everything that is made lies in our own namespaces, so removing those removes it all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from .base import TopologyError
from .launch import CLONE_NEWNET, NAMESPACES, enter_namespace
from .link import LinkSpec

if TYPE_CHECKING:
    from pyroute2 import IPRoute

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
    from pyroute2 import netns
    from pyroute2.netlink.exceptions import NetlinkError

    if not (NAMESPACES / name).exists():
        return False

    def remove_links(route: IPRoute) -> None:
        for link in route.get_links():
            if link["index"] != 1:
                with suppress(NetlinkError):  # it went with its other end
                    route.link("del", index=link["index"])

    with suppress(OSError):  # a name without a namespace: made half
        with_route(name, remove_links)
    netns.remove(name)
    return True


def add_bridge(namespace: str, name: str, address: str) -> None:
    """A bridge with an address."""

    def add(route: IPRoute) -> None:
        route.link("add", ifname=name, kind="bridge")
        _set_up(route, name, address)

    with_route(namespace, add)


def add_link(
    worker: str, inner: str, address: str, switch: str, outer: str, *, bridge: str | None, mac: str, peer_mac: str
) -> None:
    """A veth pair: ``inner`` with an address in namespace ``worker``, ``outer`` in ``switch``, on a bridge or not."""

    def add(route: IPRoute) -> None:
        with (NAMESPACES / worker).open("rb") as peer:
            ends = {"ifname": inner, "address": mac, "net_ns_fd": peer.fileno()}
            route.link("add", ifname=outer, kind="veth", address=peer_mac, peer=ends)
        joined = {} if bridge is None else {"master": _index(route, bridge)}
        route.link("set", index=_index(route, outer), state="up", **joined)

    with_route(switch, add)
    with_route(worker, lambda route: _set_up(route, inner, address))


def add_trunk(rack: str, inner: str, switch: str, outer: str, *, bridge: str) -> None:
    """A veth pair between the bridges of two namespaces."""

    def add(route: IPRoute) -> None:
        with (NAMESPACES / rack).open("rb") as peer:
            ends = {"ifname": inner, "net_ns_fd": peer.fileno()}
            route.link("add", ifname=outer, kind="veth", peer=ends)
        join(route, outer)

    def join(route: IPRoute, name: str) -> None:
        route.link("set", index=_index(route, name), state="up", master=_index(route, bridge))

    with_route(switch, add)
    with_route(rack, lambda route: join(route, inner))


def shape(namespace: str, interface: str, link: LinkSpec) -> None:
    """Give what leaves by an interface the rate of ``link`` (tc-tbf(8))."""

    def add(route: IPRoute) -> None:
        bucket = {"rate": round(link.bytes_per_s), "burst": link.burst_bytes, "limit": link.queue_bytes}
        route.tc("add", "tbf", index=_index(route, interface), handle="1:", **bucket)

    if link.rate_bits_per_s:
        with_route(namespace, add)


def no_offloads(namespace: str, interface: str) -> None:
    """Let only whole, finished frames leave by an interface: no trains, no checksums to be computed later."""
    from pyroute2.ethtool import Ethtool

    def switch_off(route: IPRoute) -> None:
        route.link("set", index=_index(route, interface), gso_max_segs=1)
        with Ethtool() as ethtool:
            features = ethtool.get_features(interface)
            for name in OFFLOADS:
                if name in features.features:
                    features.features[name].enable = False
            ethtool.set_features(interface, features)

    with_route(namespace, switch_off)


def add_neighbours(namespace: str, interface: str, macs: Sequence[tuple[str, str]]) -> None:
    """Add permanent neighbours, where nobody answers ARP. ``macs``: pairs of IP and MAC address."""

    def add(route: IPRoute) -> None:
        for address, mac in macs:
            route.neigh("add", ifindex=_index(route, interface), dst=address, lladdr=mac, state="permanent")

    with_route(namespace, add)


def _index(route: IPRoute, interface: str) -> int:
    index: int = route.link_lookup(ifname=interface)[0]
    return index


def _set_up(route: IPRoute, interface: str, address: str) -> None:
    index = _index(route, interface)
    route.addr("add", index=index, address=address, prefixlen=PREFIX_BITS)
    route.link("set", index=index, state="up")


def with_route(namespace: str, call: Callable[[IPRoute], T]) -> T:
    """Run ``call`` with a netlink socket of the namespace, on a thread there; return, or raise, what it does."""
    from pyroute2 import IPRoute

    def connected() -> T:
        with IPRoute() as route:
            return call(route)

    return run_inside(namespace, connected)


def run_inside(namespace: str, call: Callable[[], T]) -> T:
    """Run ``call`` on a thread in the namespace; return, or raise, what it does."""

    def enter_and_call() -> T:
        enter_namespace(namespace)
        return call()

    return _in_thread(enter_and_call)


def _in_thread(call: Callable[[], T]) -> T:
    """On one that ends afterwards."""
    with ThreadPoolExecutor(1, "inagg-namespace") as thread:
        return thread.submit(call).result()


def existing(prefix: str) -> list[str]:
    """The names of namespaces that begin with ``prefix``."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(NAMESPACES) if name.startswith(prefix))
    return []
