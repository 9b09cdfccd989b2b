"""The registers of bmv2 over Thrift: what goes over the wire, and what a server may answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from inagg_switch.driver import DriverError
from inagg_switch.p4.bmv2 import thrift
from inagg_switch.p4.bmv2.thrift import Registers

NAME = b"standard:bm_register_read_all"
CALL = (
    bytes.fromhex("80010001 0000001d")
    + NAME
    + bytes.fromhex("0000000108 0001 000000000b 0002 00000008")
    + b"slot_tag"
    + b"\x00"
)


def head(kind: int, number: int = 1) -> bytes:
    return struct.pack(">Ii", 0x80010000 | kind, len(NAME)) + NAME + struct.pack(">i", number)


def reply(*cells: int, number: int = 1) -> bytes:
    return head(2, number) + bytes.fromhex("0f 0000 0a") + struct.pack(f">i{len(cells)}q", len(cells), *cells) + b"\x00"


@contextmanager
def server(*answers: Callable[[bytes], bytes]) -> Iterator[str]:
    """Answers one call on each connection, in order, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5.0)

        def serve() -> None:
            with suppress(TimeoutError):
                for answer in answers:
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
        (head(2) + bytes.fromhex("0f 0000 08 00000001 00000007 00"), "no register array 'slot_tag'"),
        (reply(1, 2)[:-9], "hung up"),
        (b"", "hung up"),
        (reply(1, 2, number=9), "it answers another call"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "has failed: its answer has a part of 791752241 bytes"),
        (head(2) + bytes.fromhex("0f 0000 0a ffffffff"), "has failed: its answer has a part of -8 bytes"),
    ],
)
def test_a_server_that_does_not_answer_as_it_should_is_an_error_and_is_asked_again(answer: bytes, says: str) -> None:
    with server(lambda _: answer, lambda _: reply(7, number=2)) as target:
        registers = Registers(target)
        with pytest.raises(DriverError, match=says):
            registers.read("slot_tag")
        assert registers.read("slot_tag") == [7]
        registers.close()


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thrift, "TIMEOUT_S", 0.3)
    late = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while call := connection.recv(4096):
                (number,) = struct.unpack(">i", call[8 + len(NAME) :][:4])
                if number == 1:
                    late.wait(10)
                connection.sendall(reply(1111 if b"slot_epoch" in call else 2222, number=number))

    def listen() -> None:
        with suppress(OSError):  # until it closes
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=listen, daemon=True).start()
        registers = Registers(f"127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(DriverError, match="has failed: timed out"):
            registers.read("slot_epoch")
        late.set()
        assert registers.read("slot_tag") == [2222]
        assert registers.read("slot_epoch") == [1111]
        registers.close()
        listening.shutdown(socket.SHUT_RDWR)


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(DriverError, match=f"no Thrift server answers on {target}"):
        Registers(target, wait_s=0.2)
