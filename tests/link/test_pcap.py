"""Captures: what Wireshark's library would read is what went over the link."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.utils import RawPcapReader, rdpcap
from tests.link.memory import MemoryNetwork

from inagg_link.addresses import Address
from inagg_link.base import Batch
from inagg_link.pcap import FILE_HEADER_BYTES, LINKTYPE_RAW, CaptureLink, append_note, internet_checksum, records
from inagg_link.pcap_reading import CaptureError, read_capture

TIME_NS = 1_700_000_000_123_456_789
ONE: Address = ("10.0.0.1", 1)
OTHER: Address = ("10.0.0.2", 65_535)


def random_data(count: int, size: int, seed: int = 1) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count * size, np.uint8)


def capture(path: Path, *, max_bytes: int = 1 << 20, host: str = "10.0.0.") -> None:
    """Three datagrams out and two in."""
    network = MemoryNetwork()
    other = network.link((host + "2", 65_535))
    link = CaptureLink(network.link((host + "1", 1)), path, max_bytes=max_bytes, clock_ns=lambda: TIME_NS)
    with link:
        assert link.send(Batch(random_data(3, 21), 21, other.address)) == 3
        other.send(Batch(random_data(2, 8, 2), 8, link.address))
        assert len(link.receive(0.0)[0]) == 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.pcap"


def test_a_capture_reads_back_as_it_was(path: Path) -> None:
    capture(path)
    datagrams = list(read_capture(path))
    assert [d.payload for d in datagrams[:3]] == [row.tobytes() for row in random_data(3, 21).reshape(3, 21)]
    assert [d.payload for d in datagrams[3:]] == [row.tobytes() for row in random_data(2, 8, 2).reshape(2, 8)]
    assert {(d.source, d.destination) for d in datagrams[:3]} == {(ONE, OTHER)}
    assert {(d.source, d.destination) for d in datagrams[3:]} == {(OTHER, ONE)}
    assert {d.time_ns for d in datagrams} == {TIME_NS}


def test_a_capture_whose_name_ends_with_gz_is_compressed(tmp_path: Path) -> None:
    """And reads back the same, notes that are added later too; scapy and Wireshark read it as it is."""
    plain, packed = tmp_path / "run.pcap", tmp_path / "run.pcap.gz"
    capture(plain)
    capture(packed)
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    assert list(read_capture(packed)) == list(read_capture(plain))
    assert len(rdpcap(str(packed))) == 5
    for path in (plain, packed):
        append_note(path, b"{}", TIME_NS)
    assert list(read_capture(packed)) == list(read_capture(plain))
    assert list(read_capture(packed))[-1].payload == b"{}"


def test_a_compressed_capture_is_whole_before_it_is_closed(tmp_path: Path) -> None:
    """As after a crash."""
    network, path = MemoryNetwork(), tmp_path / "run.pcap.gz"
    other = network.link(OTHER)
    with CaptureLink(network.link(ONE), path) as link:
        link.send(Batch(random_data(3, 21), 21, other.address))
        cut = path.read_bytes()
    path.write_bytes(cut)
    assert len(list(read_capture(path))) == 3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "ends within what is compressed"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), r"what is compressed is damaged \(Incorrect length"),
        (lambda data: data + b"more", r"what is compressed is damaged \(Not a gzipped file"),
    ],
    ids=["cut", "changed", "longer"],
)
def test_damage_behind_the_last_datagram_of_a_compressed_capture_is_an_error(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "run.pcap.gz"
    capture(path)
    path.write_bytes(damage(path.read_bytes()))
    found = read_capture(path)
    assert len([next(found) for _ in range(5)]) == 5
    with pytest.raises(CaptureError, match=message):
        next(found)


def test_scapy_reads_a_capture(path: Path) -> None:
    capture(path)
    packets = rdpcap(str(path))
    assert [bytes(p[UDP].payload) for p in packets] == [d.payload for d in read_capture(path)]
    assert [(p[IP].src, p[UDP].sport, p[IP].dst, p[UDP].dport) for p in packets[:3]] == [(*ONE, *OTHER)] * 3
    assert float(packets[0].time) == pytest.approx(TIME_NS * 1e-9, abs=1e-6)


def test_the_file_says_raw_ip_and_nanoseconds(path: Path) -> None:
    capture(path)
    with RawPcapReader(str(path)) as reader:
        assert (reader.linktype, reader.nano) == (LINKTYPE_RAW, True)


@pytest.mark.parametrize(("layer", "host"), [(IP, "10.0.0."), (IPv6, "fd00::")])
def test_checksums_are_those_that_scapy_computes(path: Path, layer: type[IP], host: str) -> None:
    capture(path, host=host)
    for packet in rdpcap(str(path)):
        again = layer(bytes(packet))
        del again[UDP].chksum
        if layer is IP:
            del again.chksum
        assert bytes(layer(bytes(again))) == bytes(packet)


def check_packet(packet: bytes) -> None:
    """RFC 1071: a sum over all with its checksum is zero. RFC 768: the UDP checksum is there."""
    assert internet_checksum(packet[:20]) == 0
    pseudo = packet[12:20] + struct.pack("!HH", 17, len(packet) - 20)
    assert internet_checksum(pseudo + packet[20:]) == 0
    assert packet[26:28] != b"\x00\x00"


@given(size=st.integers(1, 300), seed=st.integers(0, 1000), filled=st.sampled_from([None, 0, 255]))
def test_every_checksum_verifies(size: int, seed: int, filled: int | None) -> None:
    data = random_data(3, size, seed) if filled is None else np.full(3 * size, filled, np.uint8)
    written = records(data.reshape(3, size), ONE, OTHER, 0)
    for start in range(0, len(written), len(written) // 3):
        check_packet(written[start + 16 : start + len(written) // 3])


def test_the_carries_of_large_datagrams_are_added_until_there_are_none() -> None:
    for seed in range(40):  # each second one needs two rounds
        check_packet(ip_packet(random_data(1, 65_507, seed).tobytes()))


def test_a_checksum_of_zero_is_written_as_all_ones() -> None:
    checksum = ip_packet(b"\x00\x00")[26:28]  # with it as the payload, the sum is complete
    packet = ip_packet(checksum)
    assert packet[26:28] == b"\xff\xff"
    check_packet(packet)


def test_the_largest_datagram_is_captured(path: Path) -> None:
    network = MemoryNetwork()
    network.link(OTHER)
    with CaptureLink(network.link(ONE), path) as link:
        link.send(Batch(random_data(1, 65_507), 65_507, OTHER))
    assert len(bytes(rdpcap(str(path))[0])) == 65_535


def test_the_file_has_a_bound_and_the_rest_is_counted(path: Path) -> None:
    record_bytes = 16 + 28 + 21
    network = MemoryNetwork()
    other = network.link(OTHER)
    bound = FILE_HEADER_BYTES + 4 * record_bytes + 50
    with CaptureLink(network.link(ONE), path, max_bytes=bound) as link:
        for _ in range(3):
            assert link.send(Batch(random_data(3, 21), 21, other.address)) == 3
        link.send(Batch(random_data(1, 1), 1, other.address))  # would fit; but a capture has no gaps
    assert link.not_captured == 6
    assert path.stat().st_size == bound - 50
    assert len(list(read_capture(path))) == 4
    assert sum(len(batch) for batch in other.receive(0.0)) == 10


def test_a_capture_can_be_read_while_it_is_written(path: Path) -> None:
    network = MemoryNetwork()
    network.link(OTHER)
    with CaptureLink(network.link(ONE), path) as link:
        link.send(Batch(random_data(1, 5), 5, OTHER))
        assert len(list(read_capture(path))) == 1


@pytest.mark.parametrize("name", ["run.pcap", "run.pcap.gz"])
def test_a_disk_that_is_full_ends_the_capture_with_a_whole_record_and_not_the_link(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    network, path = MemoryNetwork(), tmp_path / name
    other = network.link(OTHER)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # more is an error, as on a disk that is full
    try:
        with CaptureLink(network.link(ONE), path) as link:
            for seed in range(20):
                assert link.send(Batch(random_data(1, 1000, seed), 1000, other.address)) == 1
            link.note(b"too late")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    kept = [datagram.payload for datagram in read_capture(path)]
    assert kept == [random_data(1, 1000, seed).tobytes() for seed in range(len(kept))]
    assert link.not_captured == 20 - len(kept)
    assert 8 <= len(kept) <= 9
    assert [record.message for record in caplog.records] == [f"{path}: File too large; nothing more is recorded there"]
    append_note(path, b"when there is room again", TIME_NS)
    assert [datagram.payload for datagram in read_capture(path)] == [*kept, b"when there is room again"]


@pytest.mark.parametrize("name", ["run.pcap", "run.pcap.gz"])
def test_a_disk_that_is_full_from_the_first_leaves_no_file_open(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as _kept:  # with the link, or that would be collected
        CaptureLink(MemoryNetwork().link(ONE), path)
    assert "/dev/full" not in {os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()}


def test_what_the_kernel_did_not_accept_is_not_captured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryNetwork().link(ONE)
    monkeypatch.setattr(inner, "send", lambda batch: 2)
    with CaptureLink(inner, path) as link:
        assert link.send(Batch(random_data(3, 5), 5, OTHER)) == 2
    assert len(list(read_capture(path))) == 2


def test_each_of_many_peers_is_captured(path: Path) -> None:
    network = MemoryNetwork()
    with CaptureLink(network.link(ONE), path) as link:
        assert link.send_many(random_data(2, 5), 5, [OTHER, ("10.0.0.3", 3)]) == 4
    assert [d.destination[0] for d in read_capture(path)] == ["10.0.0.2"] * 2 + ["10.0.0.3"] * 2


def test_a_packet_has_one_ip_version() -> None:
    with pytest.raises(ValueError, match="no packet goes"):
        records(np.zeros((1, 1), np.uint8), ("10.0.0.1", 1), ("::1", 1), 0)


# --- captures of others ---


def write(path: Path, order: str, magic: int, link_type: int, *frames: bytes) -> None:
    header = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65_535, link_type)
    path.write_bytes(
        header + b"".join(struct.pack(order + "IIII", 7, 5, len(frame), len(frame)) + frame for frame in frames)
    )


def ip_packet(payload: bytes) -> bytes:
    return records(np.frombuffer(payload, np.uint8).reshape(1, -1), ONE, OTHER, 0)[16:]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "time_ns"), [(0xA1B2C3D4, 7_000_005_000), (0xA1B23C4D, 7_000_000_005)])
def test_both_byte_orders_and_units_of_time_are_read(path: Path, order: str, magic: int, time_ns: int) -> None:
    write(path, order, magic, 101, ip_packet(b"payload"))
    (datagram,) = read_capture(path)
    assert (datagram.time_ns, datagram.payload) == (time_ns, b"payload")


def test_ethernet_is_read_and_its_padding_left_out(path: Path) -> None:
    frame = bytes(12) + b"\x08\x00" + ip_packet(b"x")
    write(path, "<", 0xA1B2C3D4, 1, bytes(12) + b"\x08\x06" + bytes(46), frame.ljust(60, b"\x00"))
    assert [datagram.payload for datagram in read_capture(path)] == [b"x"]


def test_other_protocols_are_passed_over(path: Path) -> None:
    tcp = bytearray(ip_packet(b"x"))
    tcp[9] = 6
    write(path, "<", 0xA1B2C3D4, 101, bytes(tcp), b"", ip_packet(b"y"))
    assert [datagram.payload for datagram in read_capture(path)] == [b"y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\x0a\x0d\x0d\x0a" + bytes(20), "pcapng"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 9, 113), "link type 113"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 9, 101) + b"\x00", "header of a record"),
        (struct.pack("<IHHiIIIIIII", 0xA1B2C3D4, 2, 4, 0, 0, 9, 101, 0, 0, 5, 5) + b"1234", "within a record"),
    ],
)
def test_what_is_no_whole_capture_is_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=message):
        list(read_capture(path))


def test_a_udp_packet_that_was_cut_is_refused(path: Path) -> None:
    write(path, "<", 0xA1B2C3D4, 101, ip_packet(b"payload")[:-1])
    with pytest.raises(CaptureError, match="not captured whole"):
        list(read_capture(path))


def test_a_fragment_is_refused(path: Path) -> None:
    packet = bytearray(ip_packet(b"payload"))
    packet[6] = 0x20
    write(path, "<", 0xA1B2C3D4, 101, bytes(packet))
    with pytest.raises(CaptureError, match="fragments"):
        list(read_capture(path))
