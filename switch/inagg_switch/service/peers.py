"""Who calls, as gRPC names it."""

from __future__ import annotations

import urllib.parse


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer (``ipv4:10.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``); empty if it has none."""
    scheme, _, rest = urllib.parse.unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return ""  # a Unix socket, for example
    return rest.rpartition(":")[0].strip("[]").partition("%")[0]
