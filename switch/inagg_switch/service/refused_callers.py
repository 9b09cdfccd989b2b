"""Callers who are refused since they do not know the secret: a worker with an old one, or somebody who guesses.

They are told to the log, the first at once and the others once a minute, and counted. Nothing of what they sent is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Histogram

from inagg_proto import SERVICE
from inagg_proto.v1 import control_pb2 as pb

TELL_S: Final = 60.0
"""Seconds from one line of the log to the next."""
HOSTS_MAX: Final = 1024
"""Hosts of which the last refusal is known; the one that was first refused is forgotten first."""
CALLS: Final = {f"/{SERVICE}/{call.name}": call.name for call in pb.DESCRIPTOR.services_by_name["Control"].methods}
"""Names of the calls of the control service, by what gRPC calls them."""
OTHER: Final = "other"
"""Label of what is none of those: who calls could make up any number of names."""

log = structlog.get_logger("inagg.control")


class RefusedCallers:
    """Tells of them. On one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: Histogram | None = None
        """How long calls took, by call and code, where that is measured."""
        self._clock = clock
        self._last: dict[str, tuple[float, str]] = {}
        self._untold = 0
        self._latest = ("", "")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, method: str, host: str, why: str, took_s: float) -> None:
        """A call of ``method``, as gRPC names it, was refused to ``host``."""
        if self.seconds is not None:
            self.seconds.labels(CALLS.get(method, OTHER), "UNAUTHENTICATED").observe(took_s)
        if host not in self._last and len(self._last) >= HOSTS_MAX:
            del self._last[next(iter(self._last))]
        self._last[host] = (self._clock(), why)
        self._untold += 1
        self._latest = (host, why)
        if self._timer is None:
            self._tell()

    def since(self, host: str, at: float) -> str | None:
        """Why a call of ``host`` was refused, if one was since then."""
        refused_at, why = self._last.get(host, (at, ""))
        return why if refused_at > at else None

    def close(self) -> None:
        """Tell what is not told yet, and nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._say()

    def _tell(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TELL_S, self._tell) if self._untold else None
        self._say()

    def _say(self) -> None:
        if not self._untold:
            return
        calls, self._untold = self._untold, 0
        host, why = self._latest
        hint = "if that is a rank, a command or a switch of yours, give it a secret of this switch (INAGG_SECRET)"
        log.warning("callers_refused", calls=calls, peer=host, why=why, hint=hint)
