"""The way to the switches that INAGG_SWITCH names: whether they answer, and what the interface on the way is like."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from inagg_host.config import VARIABLES, is_loopback
from inagg_link.sockopt import interface_index
from inagg_link.tls import TlsFault
from inagg_switch.addresses import SettingsError, join_address, resolved, split_address
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient, NotASwitch, UnlikeSwitch
from inagg_switch.service.security import SecurityError

from .datagrams import try_datagrams
from .finding import Finding, Verdict

PATIENCE_S: Final = 5.0
SEE_VARIABLES: Final = "see INAGG_CA, INAGG_CERTIFICATE, INAGG_KEY and INAGG_SECRET"
TLS_ADVICE: Final[Mapping[TlsFault, str]] = {
    TlsFault.SERVED: "export INAGG_CA=FILE: of the authority that signed the switch's certificate",
    TlsFault.NOT_SERVED: "on {host}: start the switch with --tls-cert and --tls-key; or unset INAGG_CA, and nothing "
    "that is said is encrypted, nor the secret",
    TlsFault.OWN_FILE: SEE_VARIABLES,
    TlsFault.EXPIRED: "openssl x509 -enddate -noout -in FILE, of the switch's --tls-cert and of INAGG_CA; a new one in "
    "its place, and on {host}: kill -HUP PID of the switch",
    TlsFault.NOT_YET_VALID: "date, here and where the certificate was made",
    TlsFault.UNKNOWN_ISSUER: "export INAGG_CA=FILE: of the authority that signed it; if that is an intermediate one, "
    "its certificate goes into the switch's --tls-cert too",
    TlsFault.WRONG_NAME: "export INAGG_SWITCH=NAME:{port}, a name in it; or give the switch a certificate for {host} "
    "(subjectAltName)",
    TlsFault.UNTRUSTED: "export INAGG_CA=FILE: of the authority that signed it",
    TlsFault.CERTIFICATE_WANTED: "export INAGG_CERTIFICATE=FILE INAGG_KEY=FILE",
    TlsFault.CERTIFICATE_REFUSED: "export INAGG_CERTIFICATE=FILE INAGG_KEY=FILE, of another",
}
"""Advice on TLS that fails, with {host} and {port} of the switch."""
MTU_USUAL: Final = 1500
MTU_OPTION: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 14),  # IP_MTU, include/uapi/linux/in.h
    socket.AF_INET6: (socket.IPPROTO_IPV6, 24),  # IPV6_MTU, include/uapi/linux/in6.h
}
"""Option for the MTU of the route of a connected socket."""
HEADERS_BYTES: Final = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}
"""Headers of IP and UDP."""
SIOCETHTOOL: Final = 0x8946
ETHTOOL_FEATURES: Final = {"gro": 0x2B, "gso": 0x23}
"""ETHTOOL_GGRO and ETHTOOL_GGSO (include/uapi/linux/ethtool.h)."""


def check_switches(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Each switch of INAGG_SWITCH, as a worker with these variables would reach it."""
    if not environ.get(VARIABLES["switch"]):
        yield Finding(
            "switch", Verdict.NOTE, "INAGG_SWITCH is not set: no switch was looked for", "export INAGG_SWITCH=HOST:PORT"
        )
        return
    if environ.get(VARIABLES["certificate"]) and not environ.get(VARIABLES["ca"]):
        found = (
            "INAGG_CERTIFICATE is set, and INAGG_CA is not: without TLS there is nobody to show it to, and ranks refuse"
        )
        do = "export INAGG_CA=FILE: of the authority that signed the switch's certificate; or unset INAGG_CERTIFICATE"
        yield Finding("TLS", Verdict.WRONG, found, f"{do} INAGG_KEY")
        return
    access = access_of(environ)
    for address in addresses_of(environ):
        yield from _check_switch(address, access, environ)


def access_of(environ: Mapping[str, str]) -> Access:
    """How a worker with these variables would ask a switch."""
    ca, certificate, key = (environ.get(VARIABLES[name]) for name in ("ca", "certificate", "key"))
    return Access(
        tls=bool(ca),
        ca=Path(ca) if ca else None,
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
        secret=environ.get(VARIABLES["secret"]) or None,
    )


def addresses_of(environ: Mapping[str, str]) -> list[str]:
    """Return the addresses in INAGG_SWITCH."""
    text = environ.get(VARIABLES["switch"], "")
    return [part.strip() for part in text.split(",")] if text else []


def _check_switch(address: str, access: Access, environ: Mapping[str, str]) -> Iterator[Finding]:
    name = f"switch {address}"
    try:
        host, port = split_address(address)  # workers want a port, too
    except SettingsError as error:
        yield Finding(name, Verdict.WRONG, str(error), "export INAGG_SWITCH=HOST:PORT, as `inagg switch` prints it")
        return
    try:
        control = resolved(host)
    except OSError as error:
        yield Finding(name, Verdict.WRONG, f"{host} has no address here: {error.strerror}", f"getent hosts {host}")
        return
    try:
        with ControlClient(address, access) as client:
            client.healthy(PATIENCE_S)
            driver = client.stats(timeout_s=PATIENCE_S).driver
            planes = client.data_planes(control, PATIENCE_S).addresses
    except SecurityError as error:
        yield Finding(name, Verdict.WRONG, str(error), SEE_VARIABLES)
        return
    except ControlCallError as error:
        yield Finding(name, Verdict.WRONG, error.text, _what_to_do(error, access, address, host, port))
        return
    ports = [str(plane.port) for plane in planes]
    yield Finding(name, Verdict.OK, f"it answers; {driver}, data at UDP {', '.join(ports)}")
    data = planes[0].host or control
    if is_loopback(data) and not is_loopback(control):
        found = f"its data goes to {data}, each machine's own address: nothing of another machine comes to it"
        do = f"on {host}: start the switch with --data {join_address(control, planes[0].port)}, or without --data"
        yield Finding(f"way to {data}", Verdict.WRONG, found, do)
        return
    trial = try_datagrams(address, environ)
    yield from check_way(data, planes[0].port, trial.datagram_bytes)
    yield from trial.found


def _what_to_do(error: ControlCallError, access: Access, address: str, host: str, port: int) -> str:
    """About a switch that did not answer as it should."""
    if isinstance(error, UnlikeSwitch):
        return f"inagg --version, here and on {host}: install the same on both, and start the switch anew"
    if isinstance(error, NotASwitch):
        return f"export INAGG_SWITCH=HOST:PORT, as `inagg switch` prints it: on {host}, TCP {port} is another's"
    if error.refused:
        return SEE_VARIABLES
    if error.trouble is not None:
        return TLS_ADVICE[error.trouble.fault].format(host=host, port=port)
    if error.hangs:
        look = f"on {host}: look at its log, and inagg top --switch {address}"
        return f"{look}; if it hangs, stop it and start it again; and let TCP {port} pass"
    if error.broken:
        return f"on {host}: look at its log; if its data plane hangs, stop the switch and start it again: ranks go on"
    if not error.unreachable:
        return f"on {host}: look at the log of the switch"
    if error.of_tree:
        return f"on {host}: look at its log; and see that the switch above it runs, and is reached"
    said = error.text.lower()
    if "socket closed" in said and not access.tls:
        return "export INAGG_CA=FILE: the authority that signed the switch's certificate, as it may serve TLS"
    if access.tls and "refused" not in said:
        return f"{SEE_VARIABLES}; on {host}: see whether it runs, and with --tls-cert"
    return f"on {host}: inagg switch --listen {address}, and let TCP {port} pass"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def check_way(host: str, port: int, datagram_bytes: int | None = None) -> Iterator[Finding]:
    """The interface by which datagrams leave for ``host``, and the MTU of the route. ``datagram_bytes``: of the largest
    one's UDP payload; None: as large as fit frames of 1500 bytes."""
    family = _family(host)
    least = MTU_USUAL if datagram_bytes is None else datagram_bytes + HEADERS_BYTES[family]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, port))
            own = sock.getsockname()[0]
            mtu = sock.getsockopt(*MTU_OPTION[family])
        except OSError as error:
            yield Finding(f"way to {host}", Verdict.WRONG, f"no route: {error.strerror}", f"ip route get {host}")
            return
        interface = interface_of(own)
        if mtu < least:
            found = f"MTU {mtu}, and full datagrams take {least}: they are cut, or lost"
            widen = f"sudo ip link set {interface or 'DEV'} mtu {max(least, 1500)}"
            do = f"{widen}, or start the switch with --datagram-bytes {mtu - HEADERS_BYTES[family]}"
            yield Finding(f"way to {host}", Verdict.WRONG, found, do)
        else:
            yield Finding(
                f"way to {host}", Verdict.OK, f"by {interface or 'an interface'} with address {own}, MTU {mtu}"
            )
        for feature, command in ETHTOOL_FEATURES.items() if interface is not None else ():
            if _feature(sock, interface or "", command) is False:
                found = f"{feature} is off: a system call for each datagram"
                yield Finding(interface or "", Verdict.SLOW, found, f"sudo ethtool -K {interface} {feature} on")


def interface_of(address: str) -> str | None:
    """The interface that has an address; None if it is not found."""
    if _family(address) == socket.AF_INET6:
        try:
            return socket.if_indextoname(interface_index(address))
        except OSError:
            return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), 0x8915, request)  # SIOCGIFADDR (netdevice(7))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return "lo" if address.startswith("127.") else None


def _feature(sock: socket.socket, interface: str, command: int) -> bool | None:
    """Whether an interface has a feature on; None where that cannot be asked."""
    value = array.array("I", [command, 0])  # struct ethtool_value
    request = struct.pack("16sP", interface.encode(), value.buffer_info()[0]).ljust(40, b"\0")
    try:
        fcntl.ioctl(sock.fileno(), SIOCETHTOOL, request)
    except OSError:
        return None
    return bool(value[1])
