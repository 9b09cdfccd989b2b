"""Messages of a switch that serves: to a person, to the log, and to a program that started it."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from inagg_link.sockopt import WILDCARDS
from inagg_wire.formats import job_format

from ..addresses import is_unix, join_address, split_address
from ..p4.p4_driver import P4Driver
from ..service.security import Security, is_local
from ..service.server import ServerError
from ..software.software_driver import SoftwareDriver
from ..text import count_text
from .p4_settings import TofinoSettings
from .ready_file import write_own
from .settings import Settings
from .words import bytes_text

BUFFER_GOOD_BYTES: Final = 8 << 20
"""A receive buffer, as the kernel counts, that can be called large: 32 workers with the usual window (128 datagrams of
1472 bytes, in batches that are charged 1.01 times their bytes) have 6 MiB on their way at most."""


log = structlog.get_logger("inagg.switch")


@dataclass(frozen=True, slots=True)
class Urls:
    """URLs at which HTTP is served besides; None: nowhere."""

    metrics: str | None = None
    web: str | None = None


@contextmanager
def serving(what: str, address: str | None, option: str) -> Iterator[None]:
    """Raises `ServerError` for an OSError: ``what`` cannot be served on ``address``."""
    try:
        yield
    except OSError as error:
        raise ServerError(
            f"cannot serve {what} on {address}: {error.strerror}; choose another address with {option}"
        ) from None


def facts(control: str, driver: SoftwareDriver | P4Driver, settings: Settings, urls: Urls) -> dict[str, Any]:
    """Facts on a switch that serves, for the log and the ready file."""
    parent = settings.parent
    return {
        "pid": os.getpid(),
        "target": driver.name,
        "control": control,
        "tls": settings.security.tls,
        "metrics": urls.metrics,
        "web": urls.web,
        **(_p4_facts(driver) if isinstance(driver, P4Driver) else _software_facts(driver, settings)),
        **({"name": parent.name, "parent": parent.address} if parent is not None else {}),
    }


def _p4_facts(driver: P4Driver) -> dict[str, Any]:
    (shard,) = driver.shards
    return {
        "shards": [{"host": shard.address[0], "port": shard.address[1]}],
        "slots": shard.slots,
        "program": driver.build.name,
        "formats": sorted(driver.limits.formats),
        "lanes": driver.limits.lanes,
        "faults": None,
    }


def _software_facts(driver: SoftwareDriver, settings: Settings) -> dict[str, Any]:
    config, started = settings.software, driver.started
    return {
        "shards": [{"host": s.address[0], "port": s.address[1], "pid": s.pid} for s in started],
        "slots": config.slots,
        "datagram_bytes": config.datagram_bytes,
        "offload": all(s.gso and s.gro for s in started),
        "multicast": _groups(driver),
        "receive_buffer_bytes": min(s.receive_buffer_bytes for s in started),
        "send_buffer_bytes": min(s.send_buffer_bytes for s in started),
        "capture": [str(config.capture_of(i)) for i in range(config.shards)] if config.capture is not None else None,
        "faults": repr(config.faults) if config.faults is not None else None,
        "fault_seed": config.fault_seed if config.faults is not None else None,
    }


def announcement(control: str, driver: SoftwareDriver | P4Driver, settings: Settings, urls: Urls) -> str:
    """Lines on a switch that serves, for a person: what runs where, how to join, how to look, how to stop."""
    security, parent = settings.security, settings.parent
    about = _p4_lines(driver, settings) if isinstance(driver, P4Driver) else _software_lines(driver, settings)
    who = "" if parent is None else f" {parent.name}: below {parent.address},"
    lines = [f"inagg switch{who or ':'} control on {control} ({_guards(security)}), {about[0]}", *about[1:]]
    if urls.metrics is not None:
        lines.append(f"  metrics on {urls.metrics}")
    lines.append(f"  join:  INAGG_SWITCH={reachable(control)}, for workers and for the commands below")
    if needs := join_needs(security):
        lines.append(f"         with {', '.join(needs)}")
    lines.append(f"  look:  inagg jobs, inagg top, inagg why JOB{'' if parent is None else ' (the whole tree)'}")
    if urls.web is not None:
        lines.append(f"         {urls.web} in a browser")
    if parent is None:
        lines.append(f"  stop:  Ctrl-C: running jobs get {settings.drain_s:g} s to end; a second one stops at once")
    else:
        lines.append("  stop:  Ctrl-C: its workers join again through another switch, if they have one")
    return "\n".join(lines)


def _p4_lines(driver: P4Driver, settings: Settings) -> list[str]:
    (shard,), build, network = driver.shards, driver.build, driver.network
    where = f" on {settings.p4.address}" if settings.p4 is not None else ""
    protocol, lanes = "P4Runtime", f"up to {build.lanes}"
    if isinstance(settings.p4, TofinoSettings):
        protocol, lanes = "BF Runtime (never tried on hardware)", f"exactly {build.lanes}"
    return [
        f"data on UDP {join_address(*shard.address)}",
        f"  program {build.name} on the {driver.name} switch{where}, driven by {protocol}: {shard.slots} slots of "
        f"{lanes} lanes; up to {build.jobs} jobs of {driver.limits.workers} workers",
        f"  {count_text(len(network.hosts), 'host')}: "
        + ", ".join(f"{host.address} on port {host.port}" for host in network.hosts),
    ]


def _software_lines(driver: SoftwareDriver, settings: Settings) -> list[str]:
    config, started = settings.software, driver.started
    receive_bytes = min(s.receive_buffer_bytes for s in started)
    send_bytes = min(s.send_buffer_bytes for s in started)
    lines = [
        f"data on UDP {_data_text(driver)}",
        f"  {count_text(config.shards, 'shard')} of {config.slots} slots of up to {_lanes_text(driver)}; "
        f"up to {driver.limits.workers} workers a job",
        f"  datagrams to {config.datagram_bytes} bytes; UDP offload {_offload_text(driver)}; "
        f"socket buffers {bytes_text(receive_bytes)} in, {bytes_text(send_bytes)} out",
    ]
    if (groups := _groups(driver)) is not None:
        lines.append(f"  results are multicast to groups of {groups}, to jobs whose workers all listen")
    if config.capture is not None:
        files = ", ".join(str(config.capture_of(i)) for i in range(config.shards))
        lines.append(f"  captures up to {bytes_text(config.capture_bytes)} of datagrams a shard to {files}")
    return lines


def _groups(driver: SoftwareDriver) -> str | None:
    """The prefix of the groups to which all shards multicast results, if they do."""
    prefixes = {started.groups for started in driver.started}
    return ", ".join(sorted(p for p in prefixes if p is not None)) or None


def buffer_hint(driver: SoftwareDriver) -> str | None:
    """Advice on a small receive buffer; None if none is needed."""
    least = min(started.receive_buffer_bytes for started in driver.started)
    if least >= BUFFER_GOOD_BYTES:
        return None
    return (
        f"the kernel gave the sockets receive buffers of {bytes_text(least)} only, so bursts of many workers may be "
        "lost and sent again: sysctl -w net.core.rmem_max=33554432 net.core.wmem_max=8388608, and start the switch anew"
    )


def reachable(control: str) -> str:
    """The address to give to others: this machine's name in place of a wildcard."""
    if is_unix(control):
        return control
    host, port = split_address(control)
    return join_address(socket.gethostname(), port) if host in WILDCARDS else control


def out_of_reach(control: str, driver: SoftwareDriver | P4Driver) -> dict[str, str] | None:
    """Warning and advice, if other machines reach the control service and not the data planes, or the other way round;
    None else."""
    data = join_address(*driver.shards[0].address)
    if is_local(control) == is_local(data):
        return None
    if is_local(control):
        what = f"workers elsewhere could send data, but cannot join: control listens on {control} alone"
        return {"what": what, "hint": "give --listen an address that they reach"}
    what = f"workers elsewhere can join, but no data of theirs comes: it is taken on {data} alone"
    return {"what": what, "hint": "give --data an address that they reach"}


def tell(control: str, driver: SoftwareDriver | P4Driver, settings: Settings, urls: Urls) -> dict[str, Any]:
    """Tell a person, or the log, that the switch serves; the `facts`."""
    known = facts(control, driver, settings, urls)
    if settings.announce:
        announce(announcement(control, driver, settings, urls))
    else:
        log.info("switch_serving", **known)
    return known


def announce(text: str) -> None:
    """Print the lines for a person. What others wait for is the switch, not its lines: where standard output cannot be
    written (a full disk, a pipe that nobody reads), standard error has them, and the switch serves."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("not_announced", what="standard output cannot be written", why=error.strerror, then="it serves")
        with suppress(OSError):  # on the same full disk, as the log
            print(text, file=sys.stderr, flush=True)
        # as if it had been closed: else what is still held back fails once more when this process ends
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def say_ready(settings: Settings, known: dict[str, Any]) -> None:
    """Tell programs, if they want to know: by the ready file, with what is ``known``, and systemd. Raises
    `ServerError`."""
    for handler in logging.getLogger().handlers:
        handler.flush()  # the warnings before: who is told now may read them
    if settings.ready_file is not None:
        try:
            taken = write_own(settings.ready_file, json.dumps(known) + "\n")
        except OSError as error:
            raise ServerError(f"cannot write {settings.ready_file}: {error.strerror}") from None
        if taken is not None:
            raise ServerError(taken)
    tell_systemd("READY=1")


def tell_systemd(state: str) -> None:
    """If it started us with Type=notify: ``READY=1`` or ``STOPPING=1`` (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_systemd:
            to_systemd.connect(f"\0{path[1:]}" if path.startswith("@") else path)
            to_systemd.sendall(state.encode())
    except OSError as error:
        log.warning("not_notified", what=f"systemd was not told {state}", why=str(error))


def _guards(security: Security) -> str:
    words = ["mutual TLS" if security.client_ca is not None else "TLS" if security.tls else "no TLS"]
    return ", ".join([*words, "shared secret"] if security.wants_secret else words)


def _data_text(driver: SoftwareDriver) -> str:
    hosts, ports = zip(*(started.address for started in driver.started), strict=True)
    if len(ports) > 1 and ports == tuple(range(ports[0], ports[0] + len(ports))):
        return f"{join_address(hosts[0], ports[0])}-{ports[-1]}"
    return join_address(hosts[0], ports[0]) + "".join(f", {port}" for port in ports[1:])


def _lanes_text(driver: SoftwareDriver) -> str:
    lanes = job_format("nat8").max_lanes(driver.limits.workers, driver.limits.datagram_bytes)
    return f"{lanes} lanes (nat8)"


def _offload_text(driver: SoftwareDriver) -> str:
    if all(started.gso and started.gro for started in driver.started):
        return "on"
    asked = driver.config.offload is False
    return "off, as asked for" if asked else "off, as this kernel has none: a system call for each datagram, so slow"


def join_needs(security: Security) -> list[str]:
    """The variables that workers need besides INAGG_SWITCH."""
    names = ["INAGG_CA"] if security.tls else []
    names += ["INAGG_CERTIFICATE", "INAGG_KEY"] if security.client_ca is not None else []
    return [*names, "INAGG_SECRET"] if security.wants_secret else names
