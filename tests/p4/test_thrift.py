"""The registers of bmv2 over Thrift: what goes over the wire, and what a server may answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from inagg_switch.driver import DriverError
from inagg_switch.p4.bmv2.thrift import Registers

NAME = b"standard:bm_register_read_all"
CALL = (
    bytes.fromhex("80010001 0000001d")
    + NAME
    + bytes.fromhex("0000000108 0001 000000000b 0002 00000008")
    + b"slot_tag"
    + b"\x00"
)


def head(kind: int) -> bytes:
    return struct.pack(">Ii", 0x80010000 | kind, len(NAME)) + NAME + struct.pack(">i", 1)


def reply(*cells: int) -> bytes:
    return head(2) + bytes.fromhex("0f 0000 0a") + struct.pack(f">i{len(cells)}q", len(cells), *cells) + b"\x00"


@contextmanager
def server(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Answers the first call that it gets, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(answer(connection.recv(4096)))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def test_a_server_that_starts_a_moment_later_is_waited_for() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))  # nobody listens yet
        threading.Timer(0.2, listening.listen).start()
        Registers(f"127.0.0.1:{listening.getsockname()[1]}").close()


def test_the_cells_of_a_register_are_read() -> None:
    calls: list[bytes] = []

    def answer(call: bytes) -> bytes:
        calls.append(call)
        return reply(7, 0, 0xFFFFFFFF)

    with server(answer) as target:
        registers = Registers(target)
        assert registers.read("slot_tag") == [7, 0, 0xFFFFFFFF]
        registers.close()
    assert calls == [CALL]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (head(3), "no register array 'slot_tag'"),
        (head(2) + bytes.fromhex("0c 0001"), "no register array 'slot_tag'"),
        (reply(1, 2)[:-9], "hung up"),
        (b"", "hung up"),
    ],
)
def test_a_server_that_does_not_answer_as_it_should_is_an_error(answer: bytes, says: str) -> None:
    with server(lambda _: answer) as target:
        registers = Registers(target)
        with pytest.raises(DriverError, match=says):
            registers.read("slot_tag")
        registers.close()


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(DriverError, match=f"no Thrift server answers on {target}"):
        Registers(target, wait_s=0.2)
