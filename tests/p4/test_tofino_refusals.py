"""Why a datagram is dropped, by what the compiler made of the Tofino program's tables; see tofino_chip.py."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.switch.aggregation.world import make_binding, make_contribution

from inagg_wire import header as wire
from inagg_wire.errors import NOTICED, Reason, WireError
from inagg_wire.layout import FIELDS, HEADER_BYTES, Encoding, Kind, Op

from .tofino_chip import REFUSAL, Chip, Fields

LANES = 32
GOOD = make_contribution(make_binding(lanes=LANES), 0, np.zeros(LANES, dtype=np.uint32))


def reason_in_the_reference(data: bytes) -> Reason:
    """Why a datagram of no job is dropped."""
    try:
        kind = wire.parse(data).header.kind
    except WireError as error:
        return error.reason
    return Reason.UNKNOWN_JOB if kind is Kind.CONTRIBUTION else Reason.WRONG_KIND


def reason_on_the_chip(chip: Chip, data: bytes) -> Reason:
    whole = len(data) >= HEADER_BYTES
    fields = Fields(int, {"hdr.udp.$valid": 1, "hdr.udp.length": 8 + len(data), "hdr.inagg.$valid": int(whole)})
    fields["meta.refusal"] = int(Reason.UNKNOWN_JOB)
    offset = 0
    for field in FIELDS if whole else ():
        fields[f"hdr.inagg.{field.name}"] = int.from_bytes(data[offset : offset + field.size])
        offset += field.size
    chip.run("ingress", fields, REFUSAL)
    return Reason(fields["meta.reason"])


def test_datagrams_are_refused_for_the_reason_of_the_reference() -> None:
    """Headers with some wrong fields, and payloads of other lengths."""
    rng = random.Random(5)
    chip = Chip()
    met = set()
    for _ in range(3000):
        data = bytearray(GOOD[:HEADER_BYTES] + bytes(rng.choice((LANES, LANES, 0, 8, 16, 31, 33, 64, 128))))
        offset = 0
        for field in FIELDS:
            if rng.random() < 0.12:
                value = rng.choice((0, 1, 2, 3, 5, 8, 9, 32, rng.getrandbits(8 * field.size))) % (1 << 8 * field.size)
                data[offset : offset + field.size] = value.to_bytes(field.size)
            offset += field.size
        if rng.random() < 0.02:
            del data[rng.randrange(HEADER_BYTES) :]
        reason = reason_in_the_reference(bytes(data))
        assert reason_on_the_chip(chip, bytes(data)) is reason, data.hex()
        met.add(reason)
    assert met == {reason for reason in Reason if reason <= Reason.UNKNOWN_JOB}


HEADERS = [
    wire.Header(Kind.CONTRIBUTION, Op.SUM, Encoding.NAT8, LANES, 7, 1, 0, 1),
    wire.Header(Kind.CONTRIBUTION, Op.MAX, Encoding.SCALE8, LANES, 7, 1, 0, 1),
    wire.Header(Kind.RESULT, Op.SUM, Encoding.NAT8, LANES, 7, 1, 0, 1),
    wire.Header(Kind.NOTICE, Op.SUM, Encoding.NAT8, 0, 7, 1, 0, 1, Reason.WRONG_TOKEN),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: f"{header.kind.name}-{header.op.name}")
def test_each_wrong_bit_of_a_header_has_the_reason_of_the_reference(header: wire.Header) -> None:
    chip = Chip()
    whole = header.pack() + bytes(header.lanes)
    for bit in range(8 * HEADER_BYTES):
        wrong = int.from_bytes(whole) ^ 1 << 8 * len(whole) - 1 - bit
        data = wrong.to_bytes(len(whole))
        assert reason_on_the_chip(chip, data) is reason_in_the_reference(data), bit


def test_reasons_that_have_a_notice_get_one_and_no_others() -> None:
    chip = Chip()
    told = {
        why for why in Reason if chip.action("Ingress.answer.answer", Fields(int, {"meta.reason": why})) == "notice"
    }
    assert told == NOTICED - {Reason.OUTSIDE_WINDOW}  # which this program counts as stale
