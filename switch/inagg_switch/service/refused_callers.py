"""Callers who are refused since they do not know the secret: a worker with an old one, or somebody who guesses; and,
where HTTP is served, connections that TLS refuses.

They are told to the log, the first at once and the others once a minute, and counted. Nothing of what they sent is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
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

NO_SECRET: Final = "no secret came with it"
WRONG_SECRET: Final = "the shared secret is wrong"
CALL_HINT: Final = "if that is a rank, a command or a switch of yours, give it a secret of this switch (INAGG_SECRET)"
REQUEST_HINT: Final = "if that is a monitoring system or a browser of yours, give it a secret of this switch"
TLS_HINT: Final = (
    "if that is a monitoring system or a browser of yours, it needs https, the authority of this switch's certificate, "
    "and a valid certificate of its own if this switch has --client-ca"
)

log = structlog.get_logger("inagg.control")


class RareWarning:
    """A warning of the log on what may come any number of times: the first at once, the others counted, and the last of
    them told, once in `TELL_S`. For any thread."""

    def __init__(self, event: str, counted: str) -> None:
        """``event``: its name; ``counted``: the field with how many there were since the last one."""
        self.total = 0
        """How many there were in all."""
        self._event, self._counted = event, counted
        self._told = 0
        self._latest: dict[str, str] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    def add(self, **latest: str) -> None:
        """One more has come; ``latest``: fields of the log."""
        with self._lock:
            self.total += 1
            self._latest = latest
            if self._timer is None and not self._closed:
                self._tell()

    def close(self) -> None:
        """Tell what is not told yet, and nothing more."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
                self._tell()

    def _again(self) -> None:
        with self._lock:
            if not self._closed:
                self._tell()

    def _tell(self) -> None:
        self._timer, count = None, self.total - self._told
        if not count:
            return
        if not self._closed:
            timer = threading.Timer(TELL_S, self._again)
            timer.daemon = True
            with suppress(RuntimeError):  # no thread is left: each is told at once
                timer.start()
                self._timer = timer
        self._told = self.total
        log.warning(self._event, **{self._counted: count}, **self._latest)


class RefusedCallers:
    """Tells of them. `add` and `since` are for one event loop, all else for any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: Histogram | None = None
        """How long calls took, by call and code, where that is measured."""
        self._clock = clock
        self._last: dict[str, tuple[float, str]] = {}
        self._callers = RareWarning("callers_refused", "calls")
        self._connections = RareWarning("tls_refused", "connections")

    @property
    def callers(self) -> int:
        """How many calls and requests were refused."""
        return self._callers.total

    @property
    def connections(self) -> int:
        """How many connections for HTTP TLS has refused."""
        return self._connections.total

    def add(self, method: str, host: str, why: str, took_s: float) -> None:
        """A call of ``method``, as gRPC names it, was refused to ``host``."""
        if self.seconds is not None:
            self.seconds.labels(CALLS.get(method, OTHER), "UNAUTHENTICATED").observe(took_s)
        if host not in self._last and len(self._last) >= HOSTS_MAX:
            del self._last[next(iter(self._last))]
        self._last[host] = (self._clock(), why)
        self._callers.add(service="control", peer=host, why=why, hint=CALL_HINT)

    def add_request(self, service: str, host: str) -> None:
        """A request of HTTP that brought a wrong secret was refused to ``host``. No rank makes one: so this is nothing
        for `since`. ``service``: what it was for, "metrics" or "web"."""
        self._callers.add(service=service, peer=host, why=WRONG_SECRET, hint=REQUEST_HINT)

    def add_connection(self, service: str, host: str, why: str) -> None:
        """A connection for HTTP of ``host`` has ended before TLS stood."""
        self._connections.add(service=service, peer=host, why=why, hint=TLS_HINT)

    def since(self, host: str, at: float) -> str | None:
        """Why a call of ``host`` was refused, if one was since then."""
        refused_at, why = self._last.get(host, (at, ""))
        return why if refused_at > at else None

    def close(self) -> None:
        """Tell what is not told yet, and nothing more."""
        self._callers.close()
        self._connections.close()
