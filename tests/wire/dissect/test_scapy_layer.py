"""The scapy layer reads and writes the golden datagrams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from tests.vectors.load import vectors

from inagg_wire.dissect.scapy_layer import Inagg, bind, unbind
from inagg_wire.errors import Reason
from inagg_wire.layout import DATA_PORT, FIELDS, HEADER_BYTES, Kind


@pytest.fixture
def bound_port() -> Iterator[int]:
    bind()
    yield DATA_PORT
    unbind()


def test_the_layer_has_the_fields_of_the_layout_at_their_offsets() -> None:
    assert [(f.name, f.sz) for f in Inagg.fields_desc] == [(f.name, f.size) for f in FIELDS]
    assert len(bytes(Inagg())) == HEADER_BYTES


def test_valid_datagrams_are_read_and_written() -> None:
    for vector in vectors("headers", "valid"):
        data = bytes.fromhex(vector["datagram"])
        packet = Inagg(data)
        assert {name: packet.getfieldval(name) for name in vector["fields"]} == vector["fields"], vector["what"]
        assert packet.wrong() is None
        assert bytes(Inagg(**vector["fields"]) / packet.payload) == data


def test_invalid_datagrams_have_the_reason_of_their_vector() -> None:
    for vector in vectors("headers", "invalid"):
        data = bytes.fromhex(vector["datagram"])
        if len(data) >= HEADER_BYTES:
            assert Inagg(data).wrong() == Reason(vector["reason"]), vector["what"]


def test_codes_are_those_of_the_vector() -> None:
    for vector in vectors("results"):
        assert Inagg(bytes.fromhex(vector["result"])).codes() == vector["codes"], vector["what"]


def test_numbers_are_shown_by_name() -> None:
    notice = Inagg(kind=Kind.NOTICE, op=2, format=9, owner=int(Reason.STALE))
    assert notice.sprintf("%Inagg.kind% %Inagg.op% %Inagg.format% %Inagg.owner%") == "notice max scale8 39"
    assert Inagg(job=7, token=1, slot=9, lanes=8).summary() == (
        "inagg contribution sum nat8 job 7 slot 9 generation 1, 8 lanes"
    )


def test_a_result_answers_its_contribution_and_no_other() -> None:
    vector = vectors("results")[3]
    contribution = Inagg(bytes.fromhex(vector["contributions"][0]))
    result = Inagg(bytes.fromhex(vector["result"]))
    assert result.answers(contribution)
    assert result.hashret() == contribution.hashret()
    assert not contribution.answers(result)
    result.generation += 1
    assert not result.answers(contribution)


@pytest.mark.parametrize("direction", ["sport", "dport"])
def test_a_bound_port_is_dissected_both_ways(bound_port: int, direction: str) -> None:
    data = bytes.fromhex(vectors("contributions")[0]["datagram"])
    udp = UDP(sport=1, dport=2)
    setattr(udp, direction, bound_port)
    packet = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / udp / data
    assert Ether(bytes(packet))[Inagg].job == 7


def test_an_unbound_port_is_left_alone() -> None:
    packet = IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=DATA_PORT) / bytes(Inagg())
    assert Inagg not in IP(bytes(packet))
