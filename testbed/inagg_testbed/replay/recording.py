"""Recordings as a sequence of events: what a switch was told, took in and gave out, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inagg_link.pcap import NOTE, append_note
from inagg_link.pcap_reading import CapturedDatagram, CaptureError, read_capture
from inagg_switch.binding import Address, Binding
from inagg_switch.software.recording import VERSION, binding_from, decode_note, encode_note


class RecordingError(ValueError):
    """The file is no recording that we can read; the text says why."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The recorded switch. ``fields``: all that the note says, for people."""

    slots: int
    lanes: int
    switch: Address
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bind:
    """A job was admitted."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class Unbind:
    """A job was dropped."""

    job: int


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """Datagrams of one ``size`` that came together from ``source``; ``first``: the number of the first in the file."""

    data: NDArray[np.uint8]
    size: int
    source: Address
    first: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A datagram that the switch gave out; ``number``: its place in the file."""

    payload: bytes
    to: Address
    number: int


@dataclass(frozen=True, slots=True)
class End:
    """The switch stopped, or (``whole`` False) the file does. ``missing``: datagrams that it could not send."""

    whole: bool
    missing: int
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the testbed, in its words."""

    fields: Mapping[str, Any]


Event = Begin | Bind | Unbind | Received | Sent | End | Run


def events(path: Path) -> Iterator[Event]:
    """The events of a recording, in order: first `Begin`, and at last one `End`. Raises `RecordingError`."""
    begin: Begin | None = None
    end: End | None = None
    batch: list[CapturedDatagram] = []
    cut = ""
    number = 0
    for number, found in enumerate(_whole_datagrams(path), 1):
        if isinstance(found, str):
            cut = found
            break
        note = found.source == NOTE
        if batch and (note or not _together(batch[-1], found)):
            yield _received(batch, number - len(batch))
            batch = []
        if note:
            event = _parse_note(path, found.payload)
            if begin is None and not isinstance(event, Begin):
                break
            begin = event if isinstance(event, Begin) else begin
            if isinstance(event, End):
                end = event  # what is behind it may be damaged, such as the note of a run
            else:
                yield event
        elif begin is None:
            break
        elif found.source == begin.switch:
            yield Sent(found.payload, found.destination, number)
        elif found.destination == begin.switch:
            batch.append(found)
        else:
            raise RecordingError(f"{path}: datagram {number} is neither from nor to the switch {begin.switch}")
    if begin is None:
        raise RecordingError(
            f"{path}: no recording: make one with `inagg testbed --record FILE` (a capture lacks the jobs)"
        )
    if batch:
        yield _received(batch, number - len(batch) + (not cut))
    if end is None:
        yield End(False, 0, cut or "the switch was killed, or its disk was full")
    else:
        yield replace(end, whole=False, why="; ".join(filter(None, (end.why, cut)))) if cut else end


def _whole_datagrams(path: Path) -> Iterator[CapturedDatagram | str]:
    """The datagrams of a capture; at last a word on what is wrong with its end, if that is so."""
    datagrams = read_capture(path)
    first = True
    while True:
        try:
            datagram = next(datagrams)
        except StopIteration:
            return
        except OSError as error:
            raise RecordingError(str(error)) from None
        except CaptureError as error:
            if first:
                raise RecordingError(str(error)) from None
            yield str(error)
            return
        first = False
        yield datagram


def _together(last: CapturedDatagram, now: CapturedDatagram) -> bool:
    """Whether two datagrams came in one batch."""
    same = last.time_ns == now.time_ns and last.source == now.source and last.destination == now.destination
    return same and len(last.payload) == len(now.payload)


def _received(batch: list[CapturedDatagram], first: int) -> Received:
    # Writable, as what a socket receives: for another kind Numba would compile the aggregator once more.
    data = np.frombuffer(bytearray(b"".join(datagram.payload for datagram in batch)), np.uint8)
    return Received(data, len(batch[0].payload), batch[0].source, first)


def _parse_note(path: Path, payload: bytes) -> Event:
    try:
        note = decode_note(payload)
        match note["note"]:
            case "begin":
                if note["version"] != VERSION:
                    raise RecordingError(f"{path}: a recording of version {note['version']}; this reads {VERSION}")
                host, port = note["switch"]
                return Begin(note["slots"], note["lanes"], (host, port), note)
            case "bind":
                return Bind(binding_from(note))
            case "unbind":
                return Unbind(note["job"])
            case "end":
                lost = note["not_recorded"]
                return End(not lost, note["not_sent"], f"{lost} datagrams found no room" if lost else "")
            case "run":
                return Run(note)
            case other:
                raise RecordingError(f"{path}: a note {other!r}, which this version does not know")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{path}: a note that cannot be read: {payload[:80]!r}") from error


def why_not_whole(path: Path) -> str | None:
    """Why something is missing in a recording; None if nothing is. Raises as `events`."""
    return next((event.why for event in events(path) if isinstance(event, End) and not event.whole), None)


def add_run(path: Path, **about: Any) -> str:
    """Add to a recording what was run, at its end. A sentence for people: where it is, and what it lacks and why."""
    try:
        why = why_not_whole(path)
        append_note(path, encode_note({"note": "run", **about}), time.time_ns())
    except (RecordingError, OSError) as error:
        why = str(error)
    what = "recorded" if why is None else f"recorded in part ({why})"
    return f"{what} in {path}; look at it again: inagg replay {path}"
