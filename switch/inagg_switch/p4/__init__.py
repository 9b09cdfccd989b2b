"""Switches that run the P4 program: what they are told, as data, and how their counters are read.

`plane.Plane` is what a switch can be asked; `bmv2` and `tofino` open the connections that implement it.
"""

from typing import Final

P4RUNTIME_PORT: Final = 9559
"""TCP port of P4Runtime servers (registered with IANA)."""
BFRUNTIME_PORT: Final = 50052
"""TCP port on which bf_switchd serves BF Runtime."""
THRIFT_PORT: Final = 9090
"""TCP port of bmv2's Thrift server, unless told otherwise."""

TARGETS: Final = ("bmv2", "tofino")
"""Names of such switches. They run elsewhere, so their CPU time and what their kernel drops is not known."""
