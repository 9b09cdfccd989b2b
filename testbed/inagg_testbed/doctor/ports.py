"""Whether `inagg switch` would find its ports free, and whether it is a switch that has them."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from inagg_switch.addresses import SettingsError, is_here, join_address, resolved, split_address, why_not_bound
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_switch.service.security import SecurityError

from ..topology.targets import CONTROL_PORT, DATA_PORT
from .finding import Finding, Verdict
from .network import access_of, addresses_of

PATIENCE_S: Final = 1.0
HERE: Final = "127.0.0.1"


class Port(NamedTuple):
    """One of this machine."""

    kind: str
    """TCP or UDP."""
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    @property
    def is_free(self) -> bool:
        """Whether a switch could have it."""
        why = why_not_bound(HERE, self.number, socket.SOCK_STREAM if self.kind == "TCP" else socket.SOCK_DGRAM)
        return why is None or why.errno != errno.EADDRINUSE


def check_ports(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether the usual ports are free, or belong to a switch: one of INAGG_SWITCH, or one that serves there."""
    name, usual = "ports", (Port("TCP", CONTROL_PORT), Port("UDP", DATA_PORT))
    taken = {port for port in usual if not port.is_free}
    if not taken:
        yield Finding(name, Verdict.OK, f"{usual[0]} and {usual[1]} are free for `inagg switch`")
        return
    serving = list[str]()
    for address, access in _ways(environ):
        theirs = _ports_of(address, access, taken) & taken
        if theirs:
            taken -= theirs
            serving.append(address)
        if not taken:
            yield Finding(name, Verdict.OK, f"an inagg switch serves at {' and '.join(dict.fromkeys(serving))}")
            return
    ports = " and ".join(map(str, sorted(taken)))
    if usual[0] in taken and _speaks_tls():
        found = f"what has {ports} speaks TLS: it may be a switch, of which INAGG_SWITCH and INAGG_CA do not tell"
        yield Finding(name, Verdict.NOTE, found, f"INAGG_SWITCH=HOST:{CONTROL_PORT} INAGG_CA=FILE inagg doctor")
    else:
        found = f"another program has {ports}, which `inagg switch` takes, or a switch that INAGG_SWITCH does not name"
        yield Finding(name, Verdict.WRONG, found, "inagg switch --listen 127.0.0.1:47200 --data 127.0.0.1:47201")


def _ways(environ: Mapping[str, str]) -> Iterator[tuple[str, Access]]:
    """Where switches may be, and how to ask them."""
    access, usual = access_of(environ), f"{HERE}:{CONTROL_PORT}"
    for address in addresses_of(environ):
        yield address, access
    yield usual, replace(access, secret=None)  # which is not for somebody who may be anybody
    yield usual, Access()


def _ports_of(address: str, access: Access, taken: set[Port]) -> set[Port]:
    """The ports of this machine that a switch has; none if none answers. All that are ``taken``, if it answers and
    does not say."""
    try:
        host, number = split_address(address)
        control = resolved(host)
        with ControlClient(address, access) as client:
            client.healthy(PATIENCE_S)
            own = {Port("TCP", number)} if is_here(address) else set()
            try:
                planes = client.data_planes(control, PATIENCE_S).addresses
            except ControlCallError:  # without the secret
                return taken if own else own
    except (SettingsError, OSError, SecurityError, ControlCallError):  # of which the check of switches tells
        return set()
    data = [(plane.host or control, plane.port) for plane in planes]
    return own | {Port("UDP", port) for host, port in data if is_here(join_address(host, port))}


def _speaks_tls() -> bool:
    """Whether somebody answers with a certificate, be it whose it may."""
    try:
        ssl.get_server_certificate((HERE, CONTROL_PORT), timeout=PATIENCE_S)
    except (OSError, ValueError):
        return False
    return True
