"""Why a datagram is dropped, and who is told, by the executed Tofino program: whole frames, against the reference."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.switch.aggregation.world import make_binding, make_contribution

from inagg_switch.aggregation.model import Model
from inagg_switch.binding import Address
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.layout import FIELDS, HEADER_BYTES, Encoding, Kind, Op

from .rig import Rig
from .tofino.rig import alone, check_counters, tofino_rig

WORKERS: tuple[Address, ...] = (("10.77.0.1", 5001), ("10.77.0.2", 5001))
LANES = (32, 64, 96, 128)


@pytest.fixture(scope="module")
def rig() -> Rig:
    """A switch of four passes without a job."""
    return tofino_rig([host for host, _ in WORKERS], 128)


def drops(model: Model) -> dict[Reason, int]:
    return dict(model.counters.drops)


def refused(rig: Rig, data: bytes, source: Address = WORKERS[0]) -> Reason:
    """Why the chip drops a datagram, which the reference must drop for the same reason."""
    before = drops(rig.pair.model)
    on_the_chip = dict(rig.driver.counters(0).drops)
    rig.receive(data, source)
    (reason,) = (reason for reason, count in drops(rig.pair.model).items() if count > before.get(reason, 0))
    assert rig.driver.counters(0).drops == on_the_chip | {reason: on_the_chip.get(reason, 0) + 1}, data.hex()
    return reason


def test_datagrams_are_refused_for_the_reason_of_the_reference(rig: Rig) -> None:
    """Headers with some wrong fields, and payloads of other lengths."""
    rng = random.Random(5)
    good = make_contribution(make_binding(lanes=32), 0, np.zeros(32, dtype=np.uint32))
    met = set()
    for _ in range(2000):
        data = bytearray(good[:HEADER_BYTES] + bytes(rng.choice((*LANES, *LANES, 0, 8, 16, 31, 33, 160))))
        data[6:8] = rng.choice((*LANES, len(data) - HEADER_BYTES)).to_bytes(2)
        offset = 0
        for field in FIELDS:
            if rng.random() < 0.1:
                value = rng.choice((0, 1, 2, 3, 5, 8, 9, 32, rng.getrandbits(8 * field.size))) % (1 << 8 * field.size)
                data[offset : offset + field.size] = value.to_bytes(field.size)
            offset += field.size
        if rng.random() < 0.02:
            del data[rng.randrange(1, HEADER_BYTES) :]
        met.add(refused(rig, bytes(data)))
    assert met == {reason for reason in Reason if reason <= Reason.UNKNOWN_JOB}


HEADERS = [
    wire.Header(Kind.CONTRIBUTION, Op.SUM, Encoding.NAT8, 32, 7, 1, 0, 1),
    wire.Header(Kind.CONTRIBUTION, Op.MAX, Encoding.SCALE8, 128, 7, 1, 0, 1),
    wire.Header(Kind.RESULT, Op.SUM, Encoding.NAT8, 64, 7, 1, 0, 1),
    wire.Header(Kind.NOTICE, Op.SUM, Encoding.NAT8, 0, 7, 1, 0, 1, Reason.WRONG_TOKEN),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: f"{header.kind.name}-{header.op.name}")
def test_each_wrong_bit_of_a_header_has_the_reason_of_the_reference(rig: Rig, header: wire.Header) -> None:
    whole = header.pack() + bytes(header.lanes)
    for bit in range(8 * HEADER_BYTES):
        wrong = int.from_bytes(whole) ^ 1 << 8 * len(whole) - 1 - bit
        refused(rig, wrong.to_bytes(len(whole)))


@pytest.mark.parametrize("lanes", LANES)
def test_what_does_not_fit_the_binding_is_refused_and_its_sender_told_to_the_last_byte(lanes: int) -> None:
    job = make_binding(7, lanes=lanes, base=8, children=WORKERS)
    rig = tofino_rig([*(host for host, _ in WORKERS), "10.77.0.9"], 128)
    rig.bind(job)

    def sent(count: int = lanes, **other: object) -> bytes:
        codes = np.zeros(count, dtype=np.uint32)
        return make_contribution(job, 0, codes, **({"lanes": count} | other))  # type: ignore[arg-type]

    told = [
        sent(token=5),
        sent(lanes * 2 % 160),
        sent(slot=7),
        sent(slot=12),
        sent(format=Encoding.DITH8),
    ]
    assert [len(rig.receive(data, WORKERS[0])) for data in told] == [1] * len(told)
    others = [
        (sent(), ("10.77.0.9", 5001)),
        (sent(), ("10.77.0.1", 5002)),
        (sent(job=8), WORKERS[0]),
        (sent(owner=1), WORKERS[0]),
        (sent(kind=Kind.RESULT), WORKERS[0]),
        (sent()[:-1], WORKERS[0]),
        (sent() + b"x", WORKERS[0]),
    ]
    assert [rig.receive(data, source) for data, source in others] == [[]] * len(others)
    rig.wrong_port(sent(), WORKERS[0], ("10.77.0.9", 5001))
    check_counters(rig)
    rig.receive(sent(), WORKERS[0])
    rig.receive(sent(), WORKERS[1])
    check_counters(rig)


@pytest.mark.parametrize("says", [0, 31, 33, 63, 65, 95, 97, 127, 129])
def test_lanes_that_are_not_those_of_the_length_are_never_added(says: int) -> None:
    """Lengths of a contribution of other lanes than its header says."""
    job = make_binding(7, lanes=64, children=WORKERS)
    rig = tofino_rig([host for host, _ in WORKERS], 128)
    rig.bind(job)
    good = make_contribution(job, 0, np.full(64, 5, dtype=np.uint32))
    rig.receive(good[: HEADER_BYTES + says] + bytes(max(0, says - 64)), WORKERS[0])
    rig.receive(good, WORKERS[1])
    check_counters(rig)
    assert len(rig.receive(good, WORKERS[0])) == 1
    assert len(alone(rig, good, WORKERS[0])) == 1
