"""What a driver must know of the P4 program that a switch runs: its entries, and what its counters mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import LANE_MULTIPLE

from ..binding import Binding
from ..driver import Counters, JobCounters
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
