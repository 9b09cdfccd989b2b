"""The ports of a real bmv2 switch: veth pairs in a network namespace, and raw sockets at their far ends."""

from __future__ import annotations

import itertools
import os
import select
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.p4.bmv2.switch import Frame

from inagg_switch.p4.bmv2.bmv2_plane import bmv2_driver
from inagg_switch.p4.builds import Build
from inagg_switch.p4.network import Network
from inagg_testbed.bmv2 import Bmv2Process
from inagg_testbed.topology import namespaces
from inagg_testbed.topology.base import Node

from .frames import ETHERTYPE_IPV4, echo, ethernet
from .rig import Rig

ETH_P_ALL = 3  # include/uapi/linux/if_ether.h
PACKET_OUTGOING = 4  # include/uapi/linux/if_packet.h
ANSWER_S = 5.0
NUMBERS = itertools.count()


class Veths:
    """`rig.Wire` over veth pairs. bmv2 reads its ports in no fixed order, so every frame is followed by an echo to the
    switch from the same port, whose answer says that the frame has been taken."""

    def __init__(self, network: Network, sockets: Sequence[socket.socket]) -> None:
        self.network = network
        self.sockets = sockets
        self._number = 0
        self._hosts = {host.port: host for host in network.hosts}

    def exchange(self, port: int, frame: bytes, expected: int) -> list[Frame]:
        """See `Wire.exchange`. What comes too late for one exchange is in the next, where nobody expects it."""
        self._number += 1
        host, data = self._hosts[port], self._number.to_bytes(4, "big") + bytes(28)
        ask, answer = (
            ethernet(to, source, ETHERTYPE_IPV4, echo(*ends, data, reply=reply))
            for to, source, ends, reply in (
                (self.network.mac, host.mac, (host.address, self.network.address), False),
                (host.mac, self.network.mac, (self.network.address, host.address), True),
            )
        )
        self.sockets[port].send(frame)
        self.sockets[port].send(ask)
        found: list[Frame] = []
        answered, give_up_at = False, time.monotonic() + ANSWER_S
        while not answered or len(found) < expected:
            for frame_in in self._receive(give_up_at - time.monotonic()):
                if frame_in == Frame(port, answer):
                    answered = True
                else:
                    found.append(frame_in)
            if time.monotonic() > give_up_at:
                break
        assert answered, f"the switch did not answer an echo within {ANSWER_S} s"
        return found

    def _receive(self, timeout_s: float) -> Iterator[Frame]:
        readable, _, _ = select.select(self.sockets, [], [], max(0.0, timeout_s))
        for one in readable:
            data, (_, _, kind, *_) = one.recvfrom(65535)
            if kind != PACKET_OUTGOING:
                yield Frame(self.sockets.index(one), data)


@contextmanager
def real_rig(build: Build, network: Network) -> Iterator[Rig]:
    """A rig whose P4 switch is a `simple_switch_grpc` in a namespace of its own; needs root."""
    name = f"inagg-test-{os.getpid()}-{next(NUMBERS)}"
    node = Node("switch", network.address, network.address, "lo", name, mark=name)
    assert sorted(network.ports) == list(range(len(network.ports)))
    ports = [f"p{port}" for port in sorted(network.ports)]
    with ExitStack() as stack:
        namespaces.create(name)
        stack.callback(namespaces.remove, name)
        sockets = namespaces.run_inside(name, lambda: [_make_port(port) for port in ports])
        for one in sockets:
            stack.callback(one.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inagg-p4-")))
        # a socket in the file system is reached from outside of the namespace
        p4runtime = f"unix:{folder / 'p4runtime'}"
        stack.enter_context(Bmv2Process(node, ports, p4runtime))
        thrift = "127.0.0.1:9090"
        driver = namespaces.run_inside(name, lambda: bmv2_driver(build, network, p4runtime, thrift=thrift))
        stack.callback(driver.close)
        yield Rig(driver, Veths(network, sockets))


def _make_port(name: str) -> socket.socket:
    """A veth pair, whose end ``name`` is the switch's; a socket on the other end."""
    from pyroute2 import IPRoute

    far = f"{name}-far"
    with IPRoute() as route:
        route.link("add", ifname=name, kind="veth", peer={"ifname": far})
        for end in (name, far):
            # no addresses, so that no kernel sends anything here by itself
            Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
            route.link("set", index=route.link_lookup(ifname=end)[0], state="up", mtu=9000)
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    one.bind((far, 0))
    return one
