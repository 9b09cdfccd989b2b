"""The P4 program that a switch runs, as far as a driver must know it: its entries, and what its counters mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import LANE_MULTIPLE

from ..binding import Binding
from ..driver import Counters, DriverError, JobCounters
from .bmv2 import bmv2_program as bmv2
from .bmv2 import leaf_program as leaf
from .counters import Read
from .entries import base_entries
from .network import Network
from .plane import Cell, Entry, Group
from .tofino import tofino_program as tofino


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The ways in which the programs differ. See `bmv2.bmv2_program` for the functions."""

    workers: int
    """Most workers of a job."""
    lane_step: int
    """A job's lanes are a multiple of this."""
    scatters: bool
    """Whether a result can go to one worker alone."""
    window: int | None
    """See `Limits.window`."""
    pipe_ports: int | None
    """Number of ports that share a pipe, where pipes have registers of their own, and a job so must lie in one."""
    passes: int
    """Most passes that add up a datagram; those after the first need ports in loopback."""
    base_entries: Callable[[Network], Iterator[Entry | Group]]
    job_entries: Callable[[Binding, Network, int, int], tuple[Entry | Group, ...]]
    switch_cells: Callable[[], Iterator[Cell]]
    job_cells: Callable[[int, int], Iterator[Cell]]
    job_counters: Callable[[int, int, Read], JobCounters]
    results_sent: Callable[[int, Binding, Read], tuple[int, int]]
    switch_counters: Callable[[Read], Counters]

    def check_passes(self, network: Network) -> None:
        """Raises `DriverError` unless datagrams can come to their passes as ``network`` says."""
        most = self.passes - 1
        if len(network.loopback) > most:
            has = f"has up to {most}" if most else "adds up all lanes in one: leave it out"
            raise DriverError(
                f"switch.loopback in the file of --network has {len(network.loopback)} lists of ports, one for each "
                f"pass after the first; this program {has}"
            )
        for after, ports in enumerate(network.loopback):
            if self.pipe_ports is not None and len({port // self.pipe_ports for port in ports}) > 1:
                raise DriverError(
                    f"switch.loopback[{after}] in the file of --network: ports {', '.join(map(str, ports))} are in "
                    "several pipes, which have registers of their own; those of one pass must be in one"
                )

    def more_lanes(self, network: Network) -> str | None:
        """Advice for more lanes of a switch in ``network``: see `Limits.more_lanes`."""
        unused = self.passes - 1 - len(network.loopback)
        if unused <= 0:
            return None
        return (
            f"list ports in loopback as switch.loopback in its file of --network: up to {unused} more lists, each of "
            f"which adds {self.lane_step} lanes"
        )


BMV2_WINDOW: Final = 16
"""libpcap's ring, through which bmv2 reads an interface, holds about 32 packets, and a burst that it does not hold is
lost. And a window of 512 takes all slots, so that there is no room for a second job."""

BMV2: Final = Program(
    workers=CHILDREN_MAX,
    lane_step=LANE_MULTIPLE,
    scatters=True,
    window=BMV2_WINDOW,
    pipe_ports=None,
    passes=1,
    base_entries=base_entries,
    job_entries=bmv2.job_entries,
    switch_cells=bmv2.switch_cells,
    job_cells=bmv2.job_cells,
    job_counters=bmv2.job_counters,
    results_sent=bmv2.results_sent,
    switch_counters=bmv2.switch_counters,
)
BMV2_ROOT: Final = replace(BMV2, scatters=False)
BMV2_LEAF: Final = replace(
    BMV2_ROOT,
    job_entries=leaf.job_entries,
    job_cells=leaf.job_cells,
    job_counters=leaf.job_counters,
    results_sent=leaf.results_sent,
)
TOFINO: Final = Program(
    workers=tofino.WORKERS,
    lane_step=tofino.CHUNK,
    scatters=False,
    window=None,
    pipe_ports=tofino.PIPE_PORTS,
    passes=tofino.PASSES,
    base_entries=tofino.base_entries,
    job_entries=tofino.job_entries,
    switch_cells=tofino.switch_cells,
    job_cells=tofino.job_cells,
    job_counters=tofino.job_counters,
    results_sent=tofino.results_sent,
    switch_counters=tofino.switch_counters,
)
