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
    """A connection to the Thrift server of a bmv2 switch. Methods raise `DriverError`."""

    def __init__(self, target: str, wait_s: float = START_S) -> None:
        """``target``: host:port. If nobody listens there, it tries again for so long."""
        self.target = target
        self._number = 0
        try:
            self._socket = _connect(target, wait_s)
        except (OSError, ValueError) as error:
            raise DriverError(
                f"no Thrift server answers on {target} ({error}): is it the address of simple_switch_grpc's option "
                "--thrift-port? Without --thrift everything works but `inagg why`"
            ) from None

    def read(self, name: str) -> list[int]:
        """All cells of an array of registers."""
        self._number += 1
        try:
            self._socket.sendall(self._call(name))
            return self._reply(name)
        except (OSError, struct.error) as error:
            raise DriverError(f"the Thrift server on {self.target} has failed: {error}") from None

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

    def _reply(self, name: str) -> list[int]:
        version, length = struct.unpack(">Ii", self._receive(8))
        self._receive(length + 4)  # the call's name and number: there is one call at a time
        if version != VERSION | REPLY:
            raise self._refused(name)
        kind, field = struct.unpack(">bh", self._receive(3))
        if (kind, field) != (LIST, 0):
            raise self._refused(name)
        element, count = struct.unpack(">bi", self._receive(5))
        if element != I64:
            raise self._refused(name)
        cells = struct.unpack(f">{count}q", self._receive(8 * count))
        self._receive(1)  # the end of the structure
        return list(cells)

    def _receive(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = self._socket.recv(left)
            if not part:
                raise OSError("it hung up")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _refused(self, name: str) -> DriverError:
        self.close()  # what else it has to say of this call would stand before the next answer
        return DriverError(f"the Thrift server on {self.target} has no register array {name!r}; is it our program?")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
