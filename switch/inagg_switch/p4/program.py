"""What a driver must know of the P4 program that a switch runs: its entries, and what its counters mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import LANE_MULTIPLE

from ..binding import Binding
from ..driver import Counters, DriverError, JobCounters
from . import counters as counting
from . import entries, leaf_counters, leaf_entries
from .counters import Read
from .network import Network
from .plane import Cell, Entry, Group
from .tofino import tofino_program as tofino


@dataclass(frozen=True, slots=True)
class Program:
    """The ways in which the programs differ. See `entries` and `counters` for the functions."""

    workers: int
    """The most of a job."""
    lane_step: int
    """Of what a job's lanes must be a multiple."""
    scatters: bool
    """Whether a result can go to one worker alone."""
    window: int | None
    """See `Limits.window`."""
    pipe_ports: int | None
    """How many ports share a pipe, where pipes have registers of their own, and a job so must lie in one."""
    passes: int
    """The most by which a datagram is added up; those after the first need ports in loopback."""
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
        """What would give a switch in ``network`` more lanes: see `Limits.more_lanes`."""
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
    CHILDREN_MAX,
    LANE_MULTIPLE,
    True,
    BMV2_WINDOW,
    None,
    1,
    entries.base_entries,
    entries.job_entries,
    counting.switch_cells,
    counting.job_cells,
    counting.job_counters,
    counting.results_sent,
    counting.switch_counters,
)
BMV2_ROOT: Final = replace(BMV2, scatters=False)
BMV2_LEAF: Final = replace(
    BMV2_ROOT,
    job_entries=leaf_entries.job_entries,
    job_cells=leaf_counters.job_cells,
    job_counters=leaf_counters.job_counters,
    results_sent=leaf_counters.results_sent,
)
TOFINO: Final = Program(
    tofino.WORKERS,
    tofino.CHUNK,
    False,
    None,
    tofino.PIPE_PORTS,
    tofino.PASSES,
    tofino.base_entries,
    tofino.job_entries,
    tofino.switch_cells,
    tofino.job_cells,
    tofino.job_counters,
    tofino.results_sent,
    tofino.switch_counters,
)
