"""What a shaped link is: rates in words, buckets and queues, what fits through."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from inagg_testbed.bench.links import WorkerBytes, share_of_link
from inagg_testbed.topology import LinkSpec, Node
from inagg_testbed.topology.link import TRAIN_BYTES
from inagg_wire.formats import job_format


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 1e9), ("100mbit", 1e8), ("2.5Gbit", 2.5e9), ("512kbit/s", 512e3), ("none", 0)]
)
def test_a_rate_is_read_with_its_unit(text: str, bits: float) -> None:
    assert LinkSpec.parse(text).rate_bits_per_s == bits


@pytest.mark.parametrize("text", ["1gbit", "100mbit", "2.5gbit", "none"])
def test_a_link_is_written_as_it_is_read(text: str) -> None:
    assert str(LinkSpec.parse(text)) == text


@pytest.mark.parametrize("text", ["", "fast", "1000", "1 GB", "-1gbit", "1kbit", "10000gbit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="link"):
        LinkSpec.parse(text)


@pytest.mark.parametrize("text", ["100mbit", "1gbit", "10gbit"])
def test_a_train_of_segments_fits_the_bucket_and_a_window_fits_the_queue(text: str) -> None:
    link = LinkSpec.parse(text)
    assert link.burst_bytes >= TRAIN_BYTES > 64 * 1024 + 45 * 66
    assert link.queue_bytes >= 512 * 1514  # blocks in flight by default, as frames


def test_a_link_carries_its_rate_less_all_headers() -> None:
    # 1448 bytes of 1514 are elements: 14 of Ethernet, 20 of IP, 8 of UDP and 24 of ours are headers
    link = LinkSpec.parse("1gbit")
    assert link.capacity(1472, 1.0) - link.capacity(1472, 0.0) == pytest.approx(125e6 / 1514)


def test_all_that_fits_is_the_whole_share_and_the_bucket_counts_as_time() -> None:
    link, fmt = LinkSpec.parse("1gbit"), job_format("nat8")
    fits = link.capacity(1472, 0.1) * 1448
    assert fits == pytest.approx((12.5e6 + link.burst_bytes) * 1448 / 1514)
    assert share_of_link(link, fmt, 4, 1448, round(fits), 0.1) == pytest.approx(1.0)
    assert share_of_link(LinkSpec.parse("none"), fmt, 4, 1448, 1000, 0.1) is None


def test_the_larger_direction_counts_for_a_format_that_sends_less_than_it_gets() -> None:
    link = LinkSpec.parse("1gbit")
    # tern: 386 bytes up, 1472 down, with 8 workers
    fits = link.capacity(1472, 0.1) * 1448
    assert share_of_link(link, job_format("tern"), 8, 1448, round(fits), 0.1) == pytest.approx(1.0)


# --- bytes of Gloo ---


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        yield client, stack.enter_context(server.accept()[0])


def test_over_loopback_a_workers_own_connections_are_counted_alone() -> None:
    """Not what others send there meanwhile: it would make our share of Gloo's bytes smaller."""
    with connected() as (client, accepted), socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        carried = WorkerBytes(Node("w0", "127.0.0.1", "127.0.0.1", "lo", None, ""))
        before = carried.count()
        with connected() as (other, _):
            other.sendall(bytes(20_000))
            client.sendall(bytes(3000))
            while len(accepted.recv(3000, socket.MSG_PEEK)) < 3000:
                pass
            after = carried.count()
        assert [b - a for a, b in zip(before, after, strict=True)] == [3000, 3000]
        client.sendall(b"x")  # counting has closed nothing
        assert accepted.recv(4000, socket.MSG_WAITALL | socket.MSG_DONTWAIT)
