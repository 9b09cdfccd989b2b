"""Channels of one switch to its parent: the one in use, and those from before its files were read again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

import grpc.aio

from inagg_proto import RECONNECT
from inagg_proto.v1 import control_pb2_grpc

from .access import OpenedAccess

KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 6_000),  # a server takes 5 s for too often
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A parent that vanished is noticed in nine seconds, since its system acknowledges nothing (the timeout is TCP's
TCP_USER_TIMEOUT, so a process that is only held is not given up by it)."""


class Uplink:
    """A channel to the parent, and what it was made of."""

    def __init__(self, parent: str, access: OpenedAccess) -> None:
        self.access = access
        self.channel: grpc.aio.Channel = access.aio_channel(parent, (*RECONNECT, *KEEPALIVE))
        self.stub = control_pb2_grpc.ControlStub(self.channel)
        self._users, self._retired = 0, False
        self._closing: asyncio.Task[None] | None = None

    @contextmanager
    def used(self) -> Iterator[Self]:
        """Keep the channel from being closed meanwhile, unless by `close`."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            self._close_unused()

    def retire(self) -> None:
        """Close it when nothing uses it any more."""
        self._retired = True
        self._close_unused()

    @property
    def closed(self) -> bool:
        """Whether it has been retired, and nothing uses it."""
        return self._closing is not None

    def _close_unused(self) -> None:
        if self._retired and not self._users and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """End what uses it."""
        await self.channel.close(None)


class Uplinks:
    """The channel to the parent that is in use, and another that is to take its place."""

    def __init__(self, parent: str, access: OpenedAccess) -> None:
        self._parent = parent
        self.now = Uplink(parent, access)
        """The one for all that begins."""
        self.next: Uplink | None = None
        """One that is to take its place; None: there is none."""
        self._all = [self.now]

    def offer(self, access: OpenedAccess) -> Uplink | None:
        """Make a channel that is to take the place of the one in use, and of another that was to; None if that in use
        is of the same."""
        if self.next is not None:
            self.next.retire()
            self.next = None
        if access == self.now.access:
            return None
        self.next = Uplink(self._parent, access)
        self._all = [uplink for uplink in self._all if not uplink.closed] + [self.next]
        return self.next

    def take_next(self) -> bool:
        """Use the next one, if there is one, for all that begins from now on; whether there is."""
        if self.next is None:
            return False
        self.now.retire()
        self.now, self.next = self.next, None
        return True

    async def close(self) -> None:
        """End what uses any of them."""
        for uplink in self._all:
            await uplink.close()
