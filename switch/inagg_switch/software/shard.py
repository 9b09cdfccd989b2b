"""One shard of the software switch: a data plane in a process of its own, told what to do through a pipe."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from inagg_link.base import Link
from inagg_link.fault_link import FaultLink
from inagg_link.first_start import Unit, compile_all, telling
from inagg_link.pcap import CaptureLink
from inagg_link.udp import UdpLink
from inagg_wire.errors import Reason

from ..aggregation.aggregator import Aggregator
from ..binding import Binding
from ..driver import Counters, DriverError
from .config import PARENTS_SIGNALS, Compiling, SoftwareConfig, Started
from .data_plane import DataPlane
from .loop import Pump
from .multicast import open_groups
from .recording import Recorder

log = logging.getLogger("inagg")


class LinkStack:
    """A shard's socket, and what was put around it: the capture inside, then faults, the recording outside.

    So a capture has what really crossed the network, a recording what the data plane saw. Raises OSError, ValueError or
    `DriverError` if they do not open.
    """

    def __init__(self, config: SoftwareConfig, shard: int) -> None:
        port = config.port + shard if config.port else 0
        self._udp = UdpLink((config.host, port), offload=config.offload)
        self._groups: str | None = None
        self._captures: list[CaptureLink] = []
        self._faults: FaultLink | None = None
        self.link: Link = self._udp
        path = config.capture_of(shard)
        try:
            if config.faults is None:
                self._groups = open_groups(self._udp, config.multicast)
            if path is not None:
                self._capture(path, config.capture_bytes, "capture")
            if config.faults is not None:
                self.link = self._faults = FaultLink(self.link, config.faults, config.fault_seed + shard)
            self.recorder = self._recorder(config, shard)
        except BaseException:
            self.link.close()
            raise

    def _recorder(self, config: SoftwareConfig, shard: int) -> Recorder | None:
        path = config.record_of(shard)
        if path is None:
            return None
        link = self._capture(path, config.capture_bytes, "record")
        faults = None if config.faults is None else repr(config.faults)
        seed = None if config.faults is None else config.fault_seed + shard
        about = {"shard": shard, "slots": config.slots, "lanes": config.lanes, "faults": faults, "fault_seed": seed}
        return Recorder(link, about)

    def _capture(self, path: Path, size_bytes: int, what: str) -> CaptureLink:
        """``what``: asked for, in the words of the options."""
        try:
            self.link = capture = CaptureLink(self.link, path, max_bytes=size_bytes)
        except OSError as error:
            raise DriverError(f"cannot {what} to {path}: {error.strerror}") from None
        self._captures.append(capture)
        return capture

    def started(self) -> Started:
        """Message on what was opened."""
        udp = self._udp
        return Started(
            udp.address,
            os.getpid(),
            udp.gso,
            udp.gro,
            udp.granted_receive_buffer_bytes,
            udp.granted_send_buffer_bytes,
            self._groups,
        )

    def complete(self, counters: Counters) -> Counters:
        """Add what only the wires know."""
        below = self._udp.counters
        if below.empty:
            # No batch can hold a datagram of no bytes, so the link drops it: it is too short for a header.
            counters.datagrams_in += below.empty
            counters.drops[Reason.TOO_SHORT] = counters.drops.get(Reason.TOO_SHORT, 0) + below.empty
        if self._faults is not None:
            models = [model.counters for model in (self._faults.sending, self._faults.receiving)]
            counters.faults = {
                "dropped": sum(c.dropped for c in models),
                "corrupted": sum(c.corrupted for c in models),
                "duplicated": sum(c.duplicated for c in models),
                "reordered": sum(c.reordered for c in models),
            }
        for capture in self._captures:
            counters.not_captured += capture.not_captured
        return counters


def _why(error: OSError) -> str:
    """Reason why there is no socket, and what to do."""
    advice = {
        errno.EADDRINUSE: " by another switch, or for a while by a socket of another program, unless ports are "
        "reserved (net.ipv4.ip_local_reserved_ports)",
        errno.EADDRNOTAVAIL: "; no interface of this machine has that address (`ip address` lists them): give another "
        "one with --data, or --listen",
    }.get(error.errno or 0, "")
    return f"{error.strerror or error}{advice}"


def serve(config: SoftwareConfig, shard: int, pipe: Connection) -> None:
    """The child process: a data plane until the pipe closes, also when the parent dies.

    The first messages to the parent are any number of `Compiling`, then `Started` or a `DriverError`; then
    ``(number, command, arguments...)`` is answered with ``(number, result)``, where the result may be a `DriverError`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
    try:
        wires = LinkStack(config, shard)
        aggregator = Aggregator(config.slots, config.lanes, batch_datagrams=wires.link.batch_datagrams)
        plane = DataPlane(wires.link, aggregator)
        plane.step(0.0)
    except DriverError as error:
        pipe.send(error)
        return
    except MemoryError:
        what = f"{config.slots} slots of {config.lanes} lanes need more memory than there is"
        pipe.send(DriverError(f"{what}: choose fewer with --slots, or a smaller --datagram-bytes"))
        return
    except (OSError, ValueError) as error:
        where = f"{config.host} port {config.port + shard if config.port else 0}"
        why = _why(error) if isinstance(error, OSError) else error
        pipe.send(DriverError(f"cannot serve on {where}: {why}"))
        return

    def bind(binding: Binding) -> None:
        aggregator.bind(binding)
        if wires.recorder is not None:
            wires.recorder.bind(binding)

    def unbind(job: int) -> None:
        aggregator.unbind(job)
        if wires.recorder is not None:
            wires.recorder.unbind(job)

    batches_only()
    commands: dict[str, Callable[..., Any]] = {
        "bind": bind,
        "unbind": unbind,
        "counters": lambda: wires.complete(plane.counters()),
        "waiting": lambda job, limit: aggregator.waiting(job, time.monotonic(), limit),
    }
    with wires.link:
        try:
            with telling(lambda count: pipe.send(Compiling(count))):
                compile_all(units())
            pipe.send(wires.started())
            plane.run(pipe, lambda: _execute(commands, pipe))
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent died while it was being answered
        finally:
            if wires.recorder is not None:
                wires.recorder.end(plane.counters())


def batches_only() -> None:
    """Do not take a busy core from another process as soon as a datagram comes (sched(7), SCHED_BATCH): more of them
    have come when this one's turn does, which costs less. On idle cores nothing changes. Measured, 64 MiB between four
    workers and their switch on two cores: the switch takes a sixth less processor time, and a sum a tenth less time."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:  # nobody has chosen another
        with contextlib.suppress(OSError):  # a container may forbid it: then it is only slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _execute(commands: dict[str, Callable[..., Any]], pipe: Connection) -> bool:
    """Do what the parent asks; False when it has gone."""
    try:
        number, command, *arguments = pipe.recv()
    except EOFError:
        return False
    try:
        answer = commands[command](*arguments)
    except DriverError as error:
        answer = error
    except Exception as error:
        # A bug. It must not end the jobs that have nothing to do with what was asked.
        what = f"unexpected {type(error).__name__} in {command}: {error}"
        log.exception("%s", what)
        answer = DriverError(what)
    pipe.send((number, answer))
    return True


def units() -> list[Unit]:
    """Units to be compiled, or loaded, before the first datagram comes."""
    return [Unit(__file__, _warm_up)]


def _warm_up() -> None:
    empty = Aggregator(2, 8, jobs=1)
    for _ in empty.receive(np.zeros(1, np.uint8), 1, ("127.0.0.1", 1), 0.0):
        raise AssertionError("one byte is no datagram and has no answer")
    with UdpLink() as link:
        if (port := link.port()) is not None:
            commands = os.eventfd(1, os.EFD_CLOEXEC)  # there is one: so it returns at once
            Pump(link, empty).run(port, commands)
            os.close(commands)
