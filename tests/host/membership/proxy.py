"""A TCP proxy in a process of its own: the control connection of one rank, to be killed."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection

from .spawning import CONTEXT, START_S


def _serve(target: str, port: int, ready: Connection) -> None:
    host, _, target_port = target.rpartition(":")

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            sink.transport.abort()  # the other side hears of it the same way
            return
        sink.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, int(target_port))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def run() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", port)
        ready.send(server.sockets[0].getsockname()[1])
        ready.close()
        await server.serve_forever()

    asyncio.run(run())
    os._exit(0)


class Proxy:
    """Forwards connections to ``target``, host:port, from ``address``, until `kill`."""

    address: str

    def __init__(self, target: str, before: Proxy | None = None) -> None:
        """``before``: take its place, at the same address."""
        ours, theirs = CONTEXT.Pipe(duplex=False)
        port = 0 if before is None else int(before.address.rpartition(":")[2])
        self._process = CONTEXT.Process(target=_serve, args=(target, port, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert ours.poll(START_S)
        self.address = f"127.0.0.1:{ours.recv()}"
        ours.close()

    def kill(self) -> None:
        """SIGKILL: all connections are gone, and nobody answers any more. No error if called twice."""
        self._process.kill()
        self._process.join()
