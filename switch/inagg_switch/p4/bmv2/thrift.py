"""Reads the registers of a bmv2 switch over Thrift: the one call of its older interface that we need.

Written out, since it is one call: Thrift's binary protocol (doc/specs/thrift-binary-protocol.md of Apache Thrift) on a
plain TCP connection, with the service's name before that of the call (a multiplexed processor).
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from ...addresses import split_address
from ...driver import DriverError

TIMEOUT_S: Final = 5.0
START_S, RETRY_S = 5.0, 0.05
"""A bmv2 that starts serves P4Runtime a moment before it listens for Thrift."""
VERSION: Final = 0x8001_0000
CALL, REPLY = 1, 2
STOP, I32, I64, STRING, LIST = 0, 8, 10, 11, 15
METHOD: Final = "standard:bm_register_read_all"
CONTEXT: Final = 0
"""bmv2 has several pipelines ("contexts") only in targets that we do not use."""
NUMBERS: Final = 1 << 31
"""Numbers of calls, before they begin again."""
ANSWER_MAX_BYTES: Final = 1 << 26
"""Bytes of one part of an answer: far more than an array of registers has."""


def _connect(target: str, wait_s: float) -> socket.socket:
    address = split_address(target)
    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            return socket.create_connection(address, TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(RETRY_S)


class Registers:
    """A connection to the Thrift server of a bmv2 switch. Methods raise `DriverError`.

    After a failure the next call makes a new connection: what was left of an answer would be taken for the next one.
    """

    def __init__(self, target: str, wait_s: float = START_S) -> None:
        """``target``: host:port. If nobody listens there, it tries again for so long."""
        self.target = target
        self._number = 0
        self._socket: socket.socket | None
        try:
            self._socket = _connect(target, wait_s)
        except (OSError, ValueError) as error:
            raise DriverError(
                f"no Thrift server answers on {target} ({error}): is it the address of simple_switch_grpc's option "
                "--thrift-port? Without --thrift everything works but `inagg why`"
            ) from None

    def read(self, name: str) -> list[int]:
        """All cells of an array of registers."""
        self._number = (self._number + 1) % NUMBERS
        try:
            if self._socket is None:
                self._socket = _connect(self.target, 0.0)
            self._socket.sendall(self._call(name))
            cells = self._reply(self._socket)
        except (OSError, struct.error) as error:
            self.close()
            raise DriverError(f"the Thrift server on {self.target} has failed: {error}") from None
        if cells is None:
            self.close()
            raise DriverError(f"the Thrift server on {self.target} has no register array {name!r}; is it our program?")
        return cells

    def _call(self, name: str) -> bytes:
        method, array = METHOD.encode(), name.encode()
        return b"".join(
            (
                struct.pack(">Ii", VERSION | CALL, len(method)),
                method,
                struct.pack(">i", self._number),
                struct.pack(">bhi", I32, 1, CONTEXT),
                struct.pack(">bhi", STRING, 2, len(array)),
                array,
                struct.pack(">b", STOP),
            )
        )

    def _reply(self, connection: socket.socket) -> list[int] | None:
        """Numbers that the answer has; None if it is no list of numbers, and then it is not read to its end."""
        version, length = struct.unpack(">Ii", _receive(connection, 8))
        _receive(connection, length)  # the call's name
        (number,) = struct.unpack(">i", _receive(connection, 4))
        if number != self._number:
            raise OSError("it answers another call than the last one")
        if version != VERSION | REPLY:
            return None
        if struct.unpack(">bh", _receive(connection, 3)) != (LIST, 0):
            return None
        element, count = struct.unpack(">bi", _receive(connection, 5))
        if element != I64:
            return None
        cells = struct.unpack(f">{count}q", _receive(connection, 8 * count))
        _receive(connection, 1)  # the end of the structure
        return list(cells)

    def close(self) -> None:
        """Hang up. No error if called twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _receive(connection: socket.socket, size: int) -> bytes:
    if not 0 <= size <= ANSWER_MAX_BYTES:
        raise OSError(f"its answer has a part of {size} bytes")
    parts, left = [], size
    while left:
        part = connection.recv(left)
        if not part:
            raise OSError("it hung up")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
