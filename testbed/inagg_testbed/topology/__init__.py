"""Topologies on one machine: loopback, or network namespaces with a shaped link for each worker."""

from .base import MARK, Node, Topology, TopologyError, Wiring, inside
from .link import LinkSpec
from .opening import open_topology, reopen, tear_down
from .state import State, all_states, load
from .targets import TARGETS, Running, TargetEntry, start_target, switch_for, target_entry

__all__ = [
    "MARK",
    "TARGETS",
    "LinkSpec",
    "Node",
    "Running",
    "State",
    "TargetEntry",
    "Topology",
    "TopologyError",
    "Wiring",
    "all_states",
    "inside",
    "load",
    "open_topology",
    "reopen",
    "start_target",
    "switch_for",
    "target_entry",
    "tear_down",
]
