"""Callers, as gRPC names them, and the way back to them."""

from __future__ import annotations

import ipaddress
import urllib.parse

from inagg_link.sockopt import ends_of_way, is_own

ANY_PORT = 9
"""Port with which to ask for the way to a host; nothing is sent there."""


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer (``ipv4:10.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``); empty if it has none."""
    scheme, _, rest = urllib.parse.unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return ""  # a Unix socket, for example
    return rest.rpartition(":")[0].strip("[]").partition("%")[0]


def own_host(reached: str, caller: str) -> str:
    """The address of this machine from which answers to a caller leave, if he says that he has ``reached`` another one
    of its addresses: he would take none that comes from elsewhere. Empty: ``reached`` is right; or it is none of this
    machine's, which gets here by address translation, as answers get back. Both are literal, or else that is empty too.
    """
    try:
        named, there = ipaddress.ip_address(reached), ipaddress.ip_address(caller)
        if named.version != there.version:
            return ""
        own, _ = ends_of_way(caller, ANY_PORT)
    except (OSError, ValueError):  # no way, or no literal address
        return ""
    return own if own != str(named) and is_own(reached) else ""
