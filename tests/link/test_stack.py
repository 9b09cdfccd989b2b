"""Links stack: faults and capture around real sockets."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from inagg_link.base import Batch
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_link.pcap import CaptureLink
from inagg_link.pcap_reading import read_capture
from inagg_link.udp import UdpLink


def test_faults_around_a_capture_around_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    faults = Faults(drop=0.2, duplicate=0.2, reorder=0.2, reorder_s=0.005)
    data = np.repeat(np.arange(200, dtype=np.uint8), 100)
    with UdpLink() as receiver, FaultLink(CaptureLink(UdpLink(), path), faults, seed=1) as sender:
        assert sender.send(Batch(data, 100, receiver.address)) == 200
        end_s = time.monotonic() + 5.0
        while sender.next_due_s is not None and time.monotonic() < end_s:
            sender.receive(0.01)
        expected = sender.sending.counters.left
        received: list[int] = []
        while len(received) < expected and time.monotonic() < end_s:
            received += [int(row[0]) for batch in receiver.receive(0.1) for row in batch.datagrams]
    assert len(received) == expected == 200 + sender.sending.counters.duplicated - sender.sending.counters.dropped
    assert received != sorted(received)
    assert [datagram.payload[0] for datagram in read_capture(path)] == received
