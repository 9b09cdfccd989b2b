"""Checks of the kernel: socket buffers, offloads of UDP, processors, descriptors."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from inagg_link.base import Batch
from inagg_link.udp import UdpLink
from inagg_switch.cli.ready import BUFFER_GOOD_BYTES
from inagg_switch.cli.words import bytes_text
from inagg_switch.defaults import WEB_PORT
from inagg_wire.layout import DATA_PORT

from .finding import Finding, Verdict

LIMITS: Final = {"net.core.rmem_max": 32 << 20, "net.core.wmem_max": 8 << 20}
"""Bytes that a switch and its workers ask for (`UdpLink`), which the kernel cuts to these limits."""
LEAST: Final = {"net.core.rmem_max": BUFFER_GOOD_BYTES // 2, "net.core.wmem_max": 1 << 20}
"""Least good value of a limit. The kernel grants twice what it counts."""
FILE: Final = "/etc/sysctl.d/90-inagg.conf"
DATAGRAM_BYTES, DATAGRAMS = 1472, 40
PATIENCE_S: Final = 1.0
CLIENT_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
RESERVED_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
PORTS: Final = range(WEB_PORT, DATA_PORT + 64)
"""Ports that `90-inagg.conf` reserves: the usual ones of a switch, of up to 64 shards."""
DESCRIPTORS_LEAST: Final = 1024


def sysctl(name: str) -> int | None:
    """The value of a setting that is a number; None if this kernel, or this container, has none."""
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def check_buffers() -> Iterator[Finding]:
    """How large socket buffers may be: bursts of many workers arrive at once."""
    for name, wanted in LIMITS.items():
        value = sysctl(name)
        if value is None:
            yield Finding(name, Verdict.NOTE, "it cannot be read here; a container has its host's")
        elif value < LEAST[name]:
            found = f"{bytes_text(value)}: a burst of many workers does not fit, and is sent again"
            yield Finding(
                name, Verdict.SLOW, found, f"echo '{name} = {wanted}' | sudo tee -a {FILE} && sudo sysctl -p {FILE}"
            )
        else:
            yield Finding(name, Verdict.OK, bytes_text(value))


def check_reserved_ports() -> Iterator[Finding]:
    """Whether a connection of any program may get one of a switch's usual ports, at which it then cannot start. A note
    and no more: whether a switch is to run here, nobody says."""
    try:
        low, high = map(int, CLIENT_PORTS.read_text().split())
        reserved = RESERVED_PORTS.read_text().strip()
        spans = [[int(end) for end in span.split("-")] for span in reserved.split(",") if span]
    except (OSError, ValueError):  # this kernel, or this container, has none
        return
    name, ours = "net.ipv4.ip_local_reserved_ports", f"{PORTS[0]}-{PORTS[-1]}"
    taken = [port for port in PORTS if low <= port <= high and not any(s[0] <= port <= s[-1] for s in spans)]
    if not taken:
        yield Finding("reserved ports", Verdict.OK, f"{ours} go to no connection that asks for none")
        return
    found = f"any connection may get port {taken[0]}, which matters where a switch is to run"
    setting = ",".join(filter(None, (reserved, ours)))
    do = f"echo '{name} = {setting}' | sudo tee -a {FILE} && sudo sysctl -p {FILE}"
    yield Finding("reserved ports", Verdict.NOTE, found, do)


def check_offloads() -> Iterator[Finding]:
    """Segmentation of UDP (Linux 4.18 and 5.0): tried over loopback, since some sandboxes take the options only."""
    try:
        with UdpLink() as receiver, UdpLink() as sender:
            if not (sender.gso and receiver.gro):
                missing = " and ".join(
                    n for n, there in (("UDP_SEGMENT", sender.gso), ("UDP_GRO", receiver.gro)) if not there
                )
                found = f"Linux {platform.release()} has no {missing}: a system call for each datagram"
                yield Finding("UDP offload", Verdict.SLOW, found, "run Linux 5.0 or later (not gVisor)")
                return
            data = np.zeros(DATAGRAM_BYTES * DATAGRAMS, np.uint8)
            sender.send(Batch(data, DATAGRAM_BYTES, receiver.address))
            came, batches = 0, 0
            while came < DATAGRAMS and (received := receiver.receive(PATIENCE_S)):
                came += sum(len(batch) for batch in received)
                batches += len(received)
    except OSError as error:
        yield Finding(
            "UDP", Verdict.WRONG, f"no datagram over loopback: {error.strerror or error}", "ip link set lo up"
        )
        return
    if came < DATAGRAMS:
        found = f"{came} of {DATAGRAMS} datagrams came over loopback"
        yield Finding("UDP", Verdict.WRONG, found, "sudo nft list ruleset: let UDP pass on lo")
    elif batches > DATAGRAMS // 2:
        found = f"{DATAGRAMS} datagrams came in {batches} pieces: they are not received together"
        yield Finding("UDP offload", Verdict.SLOW, found, "sudo ethtool -K lo gro on")
    else:
        yield Finding("UDP offload", Verdict.OK, f"UDP_SEGMENT and UDP_GRO, Linux {platform.release()}")


def check_processors() -> Iterator[Finding]:
    """A switch and its workers want one each."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if load > cores:
        found = f"{cores}, and {load:.1f} processes want one: measurements here mean little"
        yield Finding("processors", Verdict.NOTE, found, "top")
    else:
        yield Finding("processors", Verdict.OK, f"{cores}, load {load:.1f}")


def check_descriptors() -> Iterator[Finding]:
    """Each worker's connection to the control service is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < DESCRIPTORS_LEAST:
        found = f"a process may open {most}: a switch with many workers needs more"
        yield Finding(
            "open files",
            Verdict.WRONG,
            found,
            f"ulimit -Hn {4 * DESCRIPTORS_LEAST}, as root, or LimitNOFILE= of systemd",
        )
