"""Ethernet frames for tests of P4 switches, written out: what goes in, and what must come out to the last bit."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from inagg_switch.binding import Address
from inagg_switch.p4.network import Host, Network

ETHERTYPE_IPV4, ETHERTYPE_ARP = 0x0800, 0x0806
ICMP, UDP = 1, 17
BROADCAST = (1 << 48) - 1
DONT_FRAGMENT = 0x4000
TTL = 64


def internet_checksum(data: bytes) -> int:
    """RFC 1071."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ethernet(to: int, source: int, kind: int, payload: bytes) -> bytes:
    return to.to_bytes(6, "big") + source.to_bytes(6, "big") + struct.pack(">H", kind) + payload


def ipv4(source: str, to: str, protocol: int, payload: bytes, *, number: int = 0, flags: int = DONT_FRAGMENT) -> bytes:
    ends = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address(to).packed
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), number, flags, TTL, protocol, 0) + ends
    return head[:10] + struct.pack(">H", internet_checksum(head)) + head[12:] + payload


def udp(source: int, to: int, payload: bytes, checksum: int = 0) -> bytes:
    return struct.pack(">HHHH", source, to, 8 + len(payload), checksum) + payload


def echo(source: str, to: str, data: bytes, *, reply: bool = False) -> bytes:
    """An ICMP echo in IPv4."""
    head = struct.pack(">BBH", 0 if reply else 8, 0, 0) + data
    return ipv4(source, to, ICMP, head[:2] + struct.pack(">H", internet_checksum(head)) + head[4:])


def arp(operation: int, source: Host | Network, to_mac: int, to: str) -> bytes:
    """ARP for IPv4 over Ethernet (RFC 826); 1 asks, 2 answers."""
    return (
        struct.pack(">HHBBH", 1, ETHERTYPE_IPV4, 6, 4, operation)
        + source.mac.to_bytes(6, "big")
        + ipaddress.IPv4Address(source.address).packed
        + to_mac.to_bytes(6, "big")
        + ipaddress.IPv4Address(to).packed
    )


def to_switch(network: Network, host: Host, source: Address, payload: bytes) -> bytes:
    """The frame in which a worker's datagram arrives. Its UDP checksum is 0: none."""
    packet = ipv4(source[0], network.address, UDP, udp(source[1], network.data_port, payload))
    return ethernet(network.mac, host.mac, ETHERTYPE_IPV4, packet)


def from_switch(network: Network, host: Host, to: Address, payload: bytes) -> bytes:
    """The frame in which a result or a notice must leave."""
    packet = ipv4(network.address, to[0], UDP, udp(network.data_port, to[1], payload))
    return ethernet(host.mac, network.mac, ETHERTYPE_IPV4, packet)


@dataclass(frozen=True)
class Datagram:
    """What a frame from the switch says, for messages of failed tests."""

    to: Address
    payload: str


def describe(frame: bytes) -> Datagram | str:
    """A UDP datagram in a frame, or its bytes."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x00" or frame[23] != UDP:
        return frame.hex()
    address = str(ipaddress.IPv4Address(frame[30:34]))
    return Datagram((address, int.from_bytes(frame[36:38], "big")), frame[42:].hex())
