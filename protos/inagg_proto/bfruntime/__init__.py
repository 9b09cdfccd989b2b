"""BF Runtime, as far as the Tofino driver speaks it: messages of our own package, calls with the interface's names.

Import the messages as ``from inagg_proto.bfruntime.v1 import bfruntime_pb2``.
"""

from typing import Final

SERVICE: Final = "bfrt_proto.BfRuntime"
"""The full name of the service, as the interface has it."""
