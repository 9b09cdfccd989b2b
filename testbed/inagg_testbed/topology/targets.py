"""Switches that can stand in the middle: the software switch, and others by their line in a table."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from inagg_wire import layout

from .base import Topology, TopologyError, Wiring

CONTROL_PORT, DATA_PORT = layout.CONTROL_PORT, layout.DATA_PORT


@dataclass(frozen=True, slots=True)
class Running:
    """A switch that serves. Addresses are host:port as workers see them."""

    control: str
    data: str
    pid: int | None = None
    """PID of its process, to look whether it lives; None: it has none of its own."""
    leaves: tuple[str, ...] = ()
    """Control addresses of the switches in the racks, by rack."""


class TargetEntry(NamedTuple):
    """A target: which function starts it (``module:attribute``) as `start_target` does, and which wiring it needs."""

    start: str
    wiring: Wiring
    needs_link: bool = False
    """It binds interfaces, so it cannot do with loopback."""
    ours: bool = True
    """It is our software, so it can harm datagrams on purpose, and record them."""


TARGETS: dict[str, TargetEntry] = {
    "software": TargetEntry("inagg_testbed.topology.targets:software", "bridge"),
    "bmv2": TargetEntry("inagg_testbed.bmv2:start", "ports", needs_link=True, ours=False),
}


def target_entry(name: str) -> TargetEntry:
    """The target of this name. Raises `TopologyError`."""
    try:
        return TARGETS[name]
    except KeyError:
        raise TopologyError(f"no target {name!r}: there is {', '.join(TARGETS)}") from None


def start_target(name: str, topology: Topology, options: Sequence[str] = ()) -> AbstractContextManager[Running]:
    """Run a switch in the middle of ``topology`` while the context lasts; ``options`` are its own.

    Raises `TopologyError`; `SwitchStartError`, with what it printed, if it does not start.
    """
    entry = target_entry(name)
    if topology.wiring != entry.wiring or (entry.needs_link and topology.link is None):
        raise TopologyError(f"target {name!r} needs a topology with a link and the wiring {entry.wiring!r}")
    module, _, attribute = entry.start.partition(":")
    start: Any = getattr(importlib.import_module(module), attribute)
    running: AbstractContextManager[Running] = start(topology, options)
    return running


@contextmanager
def software(topology: Topology, options: Sequence[str] = ()) -> Iterator[Running]:
    """`inagg switch` with ``options``. On loopback it takes free ports, in a namespace the usual ones."""
    from inagg_testbed.switch_process import SwitchProcess

    node = topology.switch
    if node.namespace is None:
        control, data = f"{node.host}:0", f"{node.host}:0"
    else:
        # a namespace of ours is a network that we trust
        control, data = f"{node.host}:{CONTROL_PORT}", f"{node.host}:{DATA_PORT}"
        options = ["--insecure", *options]
    with ExitStack() as stack:
        switch = stack.enter_context(SwitchProcess(*options, control=control, data=data, node=node))
        leaves = [
            stack.enter_context(
                SwitchProcess(
                    "--parent", switch.control, "--name", rack.name, *_for_a_leaf(options),
                    control=f"{rack.host}:{control.rpartition(':')[2]}", data=f"{rack.host}:{data.rpartition(':')[2]}",
                    node=rack,
                )
            ).control
            for rack in topology.racks
        ]  # fmt: skip
        yield Running(switch.control, switch.data, switch.process.pid, leaves=tuple(leaves))


def _for_a_leaf(options: Sequence[str]) -> list[str]:
    """A recording is the root's, as a file has room for one, and so is the live view."""
    words = list(options)
    for name in ("--record", "--web"):
        if name in words:
            at = words.index(name)
            del words[at : at + 2]
    return words


def switch_for(topology: Topology, rank: int, control: str, leaves: Sequence[str]) -> str:
    """INAGG_SWITCH of a rank: the switch at ``control``; where there are racks, that of its own, then the others."""
    if not leaves:
        return control
    own = topology.rack_of(rank)
    return ",".join((*leaves[own:], *leaves[:own]))
