"""Topologies: nodes that processes run in, and the links between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import click

from .launch import die_with_parent, enter_namespace, launcher
from .link import LinkSpec

Wiring = Literal["bridge", "ports"]
"""How the switch's ends of the links are joined: as a bridge with an address, or not at all."""

MARK = "INAGG_TESTBED"
"""Environment variable of all processes of a testbed: its id, by which leftovers are found."""


MANAGEMENT_PORT = "mgmt0"
"""The interface of a worker to the network beside the links, where there is one."""


class TopologyError(click.ClickException):
    """A testbed could not be made, or found; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place for processes: a network namespace, or this machine as it is."""

    name: str
    """w0, w1, ... or switch."""
    host: str
    """Its address on the links."""
    management: str
    """Its address for control connections: the same, unless they have a network of their own."""
    interface: str
    """The interface that has the address."""
    namespace: str | None
    """The name of its network namespace; None: that of the caller."""
    mark: str
    """Mark of the testbed: see `MARK`."""
    interfaces: tuple[str, ...] = ()
    """Interfaces of a switch without a bridge: the ends of the workers' links, by rank."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` here. It is killed when the thread that starts it ends."""
        return launcher(self.namespace, argv)

    def environment(self) -> dict[str, str]:
        """Return the variables that processes here need, beside what they have."""
        interface = self.interface if self.management == self.host else MANAGEMENT_PORT
        return {MARK: self.mark, "GLOO_SOCKET_IFNAME": interface}

    def enter(self) -> None:
        """Move this process here: to be called first, before it has threads. It is killed when its parent dies."""
        die_with_parent(os.getppid())
        if self.namespace is not None:
            enter_namespace(self.namespace)
        os.environ.update(self.environment())


@dataclass(frozen=True, slots=True)
class Topology:
    """Workers, each with a link to the switch."""

    name: str
    workers: tuple[Node, ...]
    """Workers by rank."""
    switch: Node
    link: LinkSpec | None
    """None: no links, all is loopback."""
    wiring: Wiring
    racks: tuple[Node, ...] = ()
    """Where the leaves of a tree run; the links of the workers end there, and each has a trunk to the switch."""
    trunk: LinkSpec | None = None

    def rack_of(self, rank: int) -> int:
        """The number of the rack in which a worker is: the first workers are in the first."""
        return rank * len(self.racks) // len(self.workers)

    def node(self, name: str) -> Node:
        """The node of this name. Raises `TopologyError`."""
        for node in (*self.workers, *self.racks, self.switch):
            if node.name == name:
                return node
        names = ", ".join(node.name for node in (*self.workers, *self.racks, self.switch))
        raise TopologyError(f"testbed {self.name!r} has no node {name!r}: it has {names}")


def inside(connection: Connection, node: Node, main: Callable[..., None], *args: Any) -> None:
    """Main function of a child process (`bench.children.Child`): ``main(connection, *args)`` on ``node``."""
    node.enter()
    main(connection, *args)
