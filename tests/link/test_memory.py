"""The network in memory: UDP's manners without sockets, threads or time."""

from __future__ import annotations

import io

import numpy as np
import pytest
from tests.link.memory import BURST_BATCHES, ManualClock, MemoryNetwork

from inagg_link.base import Batch


def data(count: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.arange(count * size, dtype=np.uint32).astype(np.uint8)


def test_a_batch_arrives_with_its_source() -> None:
    network = MemoryNetwork()
    one, other = network.link(("10.0.0.1", 1)), network.link(("10.0.0.2", 2))
    assert one.send(Batch(data(3, 10), 10, other.address)) == 3
    (batch,) = other.receive(1.0)
    assert (batch.data.tobytes(), batch.size, batch.peer) == (data(3, 10).tobytes(), 10, ("10.0.0.1", 1))


def test_the_sender_may_use_its_buffer_again() -> None:
    network = MemoryNetwork()
    one, other = network.link(), network.link()
    buffer = data(3, 10)
    one.send(Batch(buffer, 10, other.address))
    buffer[:] = 0
    assert other.receive(0.0)[0].data.tobytes() == data(3, 10).tobytes()


def test_batches_keep_their_order_and_bounds() -> None:
    network = MemoryNetwork()
    one, other = network.link(), network.link()
    one.send(Batch(data(100, 1000), 1000, other.address))
    one.send(Batch(data(1, 5), 5, other.address))
    received = other.receive(0.0)
    assert [(len(batch), batch.size) for batch in received] == [(64, 1000), (36, 1000), (1, 5)]
    assert b"".join(batch.data.tobytes() for batch in received[:2]) == data(100, 1000).tobytes()


def test_one_receive_returns_a_bounded_amount() -> None:
    network = MemoryNetwork()
    one, other = network.link(), network.link()
    for _ in range(BURST_BATCHES + 1):
        one.send(Batch(data(1, 5), 5, other.address))
    assert [len(other.receive(0.0)) for _ in range(3)] == [BURST_BATCHES, 1, 0]


def test_one_batch_goes_to_many_peers() -> None:
    network = MemoryNetwork()
    one, others = network.link(), [network.link() for _ in range(3)]
    assert one.send_many(data(2, 10), 10, [other.address for other in others]) == 6
    assert [len(other.receive(0.0)[0]) for other in others] == [2, 2, 2]


def test_links_without_a_port_get_one_each() -> None:
    network = MemoryNetwork()
    assert len({network.link().address for _ in range(5)}) == 5


def test_an_address_is_taken_until_its_link_is_closed() -> None:
    network = MemoryNetwork()
    with network.link(("10.0.0.1", 1)), pytest.raises(OSError, match="taken"):
        network.link(("10.0.0.1", 1))
    network.link(("10.0.0.1", 1))


def test_what_nobody_receives_is_counted_at_the_sender() -> None:
    network = MemoryNetwork()
    one = network.link()
    assert one.send(Batch(data(3, 10), 10, ("10.0.0.9", 9))) == 3  # UDP accepts it
    assert one.counters.unreachable == 1


def test_what_overflows_the_queue_is_counted_at_the_receiver() -> None:
    network = MemoryNetwork(queue_bytes=100)
    one, other = network.link(), network.link()
    for _ in range(3):
        one.send(Batch(data(5, 10), 10, other.address))
    assert [len(batch) for batch in other.receive(0.0)] == [5, 5]
    assert other.counters.kernel_drops == 1
    one.send(Batch(data(5, 10), 10, other.address))
    assert len(other.receive(0.0)) == 1


def test_a_connected_link_hears_its_peer_only() -> None:
    network = MemoryNetwork()
    peer, stranger = network.link(), network.link()
    link = network.link(connect=peer.address)
    stranger.send(Batch(data(1, 10), 10, link.address))
    peer.send(Batch(data(2, 10), 10, link.address))
    assert [len(batch) for batch in link.receive(0.0)] == [2]
    assert stranger.counters.unreachable == 1
    with pytest.raises(ValueError, match="connected to"):
        link.send(Batch(data(1, 10), 10, stranger.address))


def test_counters_tell_datagrams_and_bytes() -> None:
    network = MemoryNetwork()
    one, other = network.link(), network.link()
    one.send(Batch(data(70, 10), 10, other.address))
    other.receive(0.0)
    assert (one.counters.datagrams_out, one.counters.bytes_out, one.counters.calls_out) == (70, 700, 2)
    assert (other.counters.datagrams_in, other.counters.bytes_in, other.counters.calls_in) == (70, 700, 2)


def test_waiting_for_nothing_moves_the_clock() -> None:
    clock = ManualClock(5.0)
    network = MemoryNetwork(clock=clock)
    one, other = network.link(), network.link()
    assert other.receive(0.25) == []
    assert clock() == 5.25
    one.send(Batch(data(1, 10), 10, other.address))
    other.receive(0.25)
    assert clock() == 5.25


def test_a_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        ManualClock().advance(-1.0)


def test_misuse_raises_as_on_a_socket() -> None:
    network = MemoryNetwork()
    link = network.link()
    with pytest.raises(ValueError, match="whole number"):
        link.send(Batch(data(1, 25), 10, link.address))
    with pytest.raises(io.UnsupportedOperation):
        link.fileno()
    link.close()
    link.close()
    with pytest.raises(OSError, match="closed"):
        link.receive(0.0)
    with pytest.raises(OSError, match="closed"):
        link.send(Batch(data(1, 10), 10, link.address))
