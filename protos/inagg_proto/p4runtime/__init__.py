"""P4Runtime, as far as the bmv2 driver speaks it: messages of our own package, calls with the specification's names.

Import the messages as ``from inagg_proto.p4runtime.v1 import p4runtime_pb2``.
"""

from typing import Final

SERVICE: Final = "p4.v1.P4Runtime"
"""The full name of the service, as the specification has it."""
