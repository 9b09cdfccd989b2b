"""Recordings: what a data plane took in and gave out, with all that it was told, so that it can be done again.

A recording is a packet capture (`inagg_link.pcap`) around everything else, faults too, so it has what the switch
saw and not what the network carried. Among the datagrams stand notes, JSON in UDP from and to port 0 of 0.0.0.0, at the
places where what they tell happened: ``begin`` (what the switch is), ``bind`` and ``unbind`` (jobs), ``end`` (what is
missing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from inagg_link.pcap import CaptureLink
from inagg_wire.formats import job_format

from ..binding import Binding
from ..driver import Counters

VERSION = 3


def encode_note(note: Mapping[str, Any]) -> bytes:
    """The payload of a note's datagram."""
    return json.dumps(note, separators=(",", ":")).encode()


def decode_note(payload: bytes) -> dict[str, Any]:
    """The note of a datagram's payload. Raises ValueError if it is none."""
    note = json.loads(payload)
    if not isinstance(note, dict):
        raise ValueError("a note is a JSON object")
    return note


def binding_fields(binding: Binding) -> dict[str, Any]:
    """A binding as JSON has it."""
    return {**asdict(binding), "format": binding.format.name}


def binding_from(fields: Mapping[str, Any]) -> Binding:
    """The binding of `binding_fields`. Raises KeyError or ValueError if something is missing or wrong."""
    import msgspec  # a shard only writes

    try:
        return msgspec.convert({**fields, "format": job_format(fields["format"])}, Binding, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


class Recorder:
    """Writes the notes of one shard into the capture of its datagrams."""

    def __init__(self, capture: CaptureLink, about: Mapping[str, Any]) -> None:
        """``about``: what the shard is, beside its address."""
        self._capture = capture
        self._note("begin", {"version": VERSION, "switch": list(capture.address), **about})

    def bind(self, binding: Binding) -> None:
        """The switch has admitted a job, or its new epoch."""
        self._note("bind", binding_fields(binding))

    def unbind(self, job: int) -> None:
        """The switch has dropped a job."""
        self._note("unbind", {"job": job})

    def end(self, counters: Counters) -> None:
        """The switch stops."""
        self._note("end", {"not_recorded": self._capture.not_captured, "not_sent": counters.send_refused})

    def _note(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._capture.note(encode_note({"note": kind, **fields}))
