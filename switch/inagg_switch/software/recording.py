"""Recordings: what a data plane took in and gave out, with all that it was told, so that it can be done again.

A recording is a packet capture (`inagg_link.pcap`) around everything else, faults too, so it has what the switch
saw and not what the network carried. Among the datagrams stand notes, JSON in UDP from and to port 0 of 0.0.0.0, at the
places where what they tell happened: ``begin`` (what the switch is), ``bind`` and ``unbind`` (jobs), ``end`` (what is
missing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inagg_link import CaptureLink
from inagg_wire.formats import job_format
from inagg_wire.noise import BlockKey
from inagg_wire.slots import Lease

from ..binding import Binding, Place, Uplink
from ..driver import Counters

VERSION = 2


def encode_note(note: Mapping[str, Any]) -> bytes:
    """The payload of a note's datagram."""
    return json.dumps(note, separators=(",", ":")).encode()


def decode_note(payload: bytes) -> dict[str, Any]:
    """The other way. Raises ValueError if it is none."""
    note = json.loads(payload)
    if not isinstance(note, dict):
        raise ValueError("a note is a JSON object")
    return note


def binding_fields(binding: Binding) -> dict[str, Any]:
    """A binding as JSON has it."""
    group = {} if binding.group is None else {"group": list(binding.group)}
    place: dict[str, Any] = {}
    if binding.place is not None:
        up = binding.place.uplink
        place = {
            "world": binding.place.world,
            "child_of": list(binding.place.child_of),
            "from_switches": binding.place.from_switches,
            "parts": binding.place.parts,
            "uplink": None
            if up is None
            else {"parent": list(up.parent), "base": up.base, "parts": up.parts, "key": list(up.key)},
        }
    return {
        "job": binding.job,
        "token": binding.token,
        "format": binding.format.name,
        "lanes": binding.lanes,
        "base": binding.lease.base,
        "slots": binding.lease.slots,
        "seed": binding.seed,
        "workers": [list(address) for address in binding.children],
        "resume_block": binding.resume_block,
        "scatters": binding.scatters,
        **group,
        **({"place": place} if place else {}),
    }


def binding_from(fields: Mapping[str, Any]) -> Binding:
    """The other way. Raises KeyError, ValueError or TypeError if something is missing or wrong."""
    return Binding(
        job=fields["job"],
        token=fields["token"],
        format=job_format(fields["format"]),
        lanes=fields["lanes"],
        lease=Lease(fields["base"], fields["slots"]),
        seed=fields["seed"],
        children=tuple((str(host), int(port)) for host, port in fields["workers"]),
        resume_block=fields["resume_block"],
        scatters=fields.get("scatters", False),
        group=(str(fields["group"][0]), int(fields["group"][1])) if "group" in fields else None,
        place=_place_from(fields["place"]) if "place" in fields else None,
    )


def _place_from(fields: Mapping[str, Any]) -> Place:
    up, uplink = fields["uplink"], None
    if up is not None:
        parent = str(up["parent"][0]), int(up["parent"][1])
        uplink = Uplink(parent, up["base"], up["parts"], BlockKey(*up["key"]))
    below = tuple(fields.get("child_of", ()))
    return Place(fields["world"], fields["from_switches"], fields["parts"], uplink, below)


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
