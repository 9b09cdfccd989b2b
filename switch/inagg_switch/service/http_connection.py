"""One connection of the HTTP server, plain or TLS. While it waits for whoever is at its other end it has no thread."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

HEADER_MAX: Final = 1 << 16
"""Bytes that are read of a request; what comes after its header does not matter."""
READ_MAX: Final = 1 << 16
"""Bytes that are read at once."""
END: Final = re.compile(rb"\r?\n\r?\n")
"""End of a header. Lines may end without a carriage return (RFC 9112, section 2.2)."""
END_MAX: Final = 4
"""Bytes of the longest end."""

Done = TypeVar("Done")


class Connection:
    """A connection that has been taken. Its methods are for one event loop, and raise OSError."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext | None) -> None:
        """``plain`` is closed with this. ``context``: that of TLS; None: there is none."""
        plain.setblocking(False)
        self._socket = plain
        if context is not None:  # the new socket takes the descriptor over
            self._socket = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    def close(self) -> None:
        """End it. What was sent still arrives."""
        with suppress(OSError):  # it has ended already
            socket.socket.shutdown(self._socket, socket.SHUT_WR)  # that of ssl.SSLSocket forgets its keys, too
        self._socket.close()

    async def shake_hands(self) -> None:
        """Begin TLS, if there is any."""
        if isinstance(self._socket, ssl.SSLSocket):
            await self._when_ready(self._socket.do_handshake)

    async def header(self) -> bytes:
        """The first that comes, to the end of a header: more than `HEADER_MAX` bytes if that does not come, fewer if
        whoever sends has ended."""
        received = bytearray()
        while len(received) <= HEADER_MAX:
            before = len(received)
            received += await self._when_ready(partial(self._socket.recv, READ_MAX))
            if len(received) == before or END.search(received, max(0, before - END_MAX + 1)):
                break
        return bytes(received)

    async def send(self, data: bytes) -> None:
        """Have the system take all of ``data``."""
        left = memoryview(data)
        while left:
            left = left[await self._when_ready(partial(self._socket.send, left), writes=True) :]

    async def _when_ready(self, step: Callable[[], Done], *, writes: bool = False) -> Done:
        """The result of ``step``, as soon as the socket lets it. ``writes``: what a plain socket would wait for."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                writes = False
            except ssl.SSLWantWriteError:
                writes = True
            except BlockingIOError:
                pass
            await self._ready(writes)

    async def _ready(self, writes: bool) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        add, remove = (loop.add_writer, loop.remove_writer) if writes else (loop.add_reader, loop.remove_reader)
        add(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            remove(self._socket)
