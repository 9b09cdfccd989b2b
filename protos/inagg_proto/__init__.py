"""The control service of inagg (gRPC): its definition and the code generated from it.

Import the messages as ``from inagg_proto.v1 import control_pb2`` and the stubs as
``from inagg_proto.v1 import control_pb2_grpc``; all other names that both sides of the service share stand here.
This module imports the standard library alone, so that the code can be generated where it does not exist yet.

The floors follow from the versions of the generator (`inagg_proto.generate`): generated code refuses to load
with an older runtime than its generator belongs to. The generator is therefore the oldest that serves us, not the
newest: code of protoc 6.31 loads with every protobuf 6 from 6.31 and every protobuf 7, so that inagg fits into an
environment whose other packages hold protobuf back.
"""

import re
from typing import Final

GRPCIO_FLOOR: Final = (1, 74, 0)
"""The oldest grpcio (and grpcio-health-checking, grpcio-reflection) that loads the generated code."""

PROTOBUF_FLOOR: Final = (6, 31, 1)
"""The oldest protobuf that loads the generated code."""

SERVICE: Final = "inagg.v1.Control"
"""The full name of the service, which is also its name in the gRPC health service."""

PROTOCOL: Final = 1
"""Version of the protocol, the same for all switches and workers of a job. It is raised by every change after which
those from before and those from after do not work together: other messages, other bits, blocks numbered otherwise."""

GRPC_PREAMBLE: Final = re.compile(r"failed to connect to all addresses; last error: [A-Z]+: \S+: (?=\S)")
"""Text of gRPC before the cause why a connection failed: it names the address again."""

LEAF_SAYS: Final = "switch '"
"""Prefix of what a switch of a tree says of itself, or another of it: that it does not reach its parent, or has
gone."""

SECRET_METADATA: Final = "authorization"
"""The metadata key of the shared secret; its value is `bearer` of it."""

NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)
"""Options of a channel: a proxy of the environment is for the web, and would be in the way of loopback too."""

RECONNECT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""Options of a channel to a switch: gRPC's own waits grow to two minutes, and a switch that is back would not be
noticed for so long."""

KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options of the channel of a rank or a command to a switch: a connection on which nothing passes any more is given up
for a new one. Else TCP would go on with it, send again less and less often, and not notice for minutes that the way is
open again.

The keepalive's timeout is TCP_USER_TIMEOUT of the socket: the system ends the connection when the other machine has
acknowledged nothing for so long, of heartbeats, or of the pings of who waits for others to join. Systems acknowledge
for processes that are held, too, so none of them loses its connection. Ten seconds are as long as a switch waits for
heartbeats, if nobody has asked for another limit: before, sums go on, and a way that opens again costs nothing.

The timeout of pings is for a process that does not answer, which heartbeats notice sooner: it is long, so that none is
given up for it that was not before. A server ends connections with too many pings, which are to be 5 s apart
(`inagg_switch.service.server.OPTIONS`)."""


def why_unlike(protocol: int, who: str, than: str) -> str | None:
    """Reason why ``who``, of that `PROTOCOL`, and the caller, ``than``, cannot work together; None if they can."""
    if protocol == PROTOCOL:
        return None
    age = "an older" if protocol < PROTOCOL else "a newer"
    return f"{who} has {age} inagg than {than} (protocol {protocol}, not {PROTOCOL}): install the same on both"


def bearer(secret: str) -> str:
    """The metadata value that carries ``secret``, as in HTTP (RFC 6750, section 2.1)."""
    return f"Bearer {secret}"
