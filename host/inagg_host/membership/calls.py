"""A rank's calls to the control service of a switch, or of one of several: where one is not there, of the next."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from inagg_host.closed import ignore
from inagg_host.config import Config, ConfigError
from inagg_host.errors import CLOSED_JOINING
from inagg_proto import GRPC_PREAMBLE, LEAF_SAYS, SECRET_METADATA, bearer, why_unlike
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc

from . import control_channel
from .tls_trouble import check_own_files, tls_trouble

Request = TypeVar("Request")
Reply = TypeVar("Reply")

log = logging.getLogger("inagg")

CALL_S = 5.0
"""Deadline of a call that waits for nobody."""
LOOK_S = 8.0
"""Deadline of a call for which the switch looks at its data planes. It waits for the look in progress, and looks then;
each takes 3 s where a data plane does not answer, and it is to say so."""
RETRY_S = 0.2
STOP_POLL_S = 0.2
WORD_AFTER_S = 10.0
"""Time after which a rank that waits for others to join says for whom."""
WORD_OF_SWITCH_AFTER_S = 2.0
"""Time after which one that cannot reach the switch says so, and goes on trying: a wrong name stays wrong."""

NOT_THERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Codes that a call gets from a switch that is not there, or is stopping and ends its calls."""
SILENT = "Deadline Exceeded"
"""gRPC's own text when a deadline has passed: the switch has said nothing."""


_first_process: int | None = None
"""The one that has used gRPC first."""


def check_fork() -> None:
    """Raise `ConfigError` in a process that was forked from one that has joined jobs, if gRPC was told not to care for
    forks (as `inagg_host.torch` does): its calls would hang there for ever, whatever their deadlines."""
    global _first_process
    _first_process = _first_process or os.getpid()
    cares = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1").lower() not in ("0", "f", "false", "n", "no")
    if _first_process != os.getpid() and not cares:
        raise ConfigError(
            "this process was forked from one that has joined a job, and gRPC does not work in it: start it with "
            'multiprocessing\'s "spawn" or "forkserver", or set GRPC_ENABLE_FORK_SUPPORT=1 for the first one'
        )


class SessionError(RuntimeError):
    """The control service refused, or cannot be reached; the text says why and what to do."""

    def __init__(self, text: str, code: grpc.StatusCode) -> None:
        super().__init__(text)
        self.code = code


THEIRS = "(A rank that has not come may still compile, or have ended: its own log tells.)"


class Calls:
    """Calls of one rank, for any thread. ``stub`` and ``address`` change with `try_again`: who reads one takes it once
    for each call."""

    def __init__(self, config: Config, stop: Callable[[], str | None]) -> None:
        """``stop`` is asked while a call waits, which then fails with the sentence that it returns. Raises
        `ConfigError`."""
        check_fork()
        self._config = config
        self._stop = stop
        self.level = logging.WARNING
        """Level at which waits and vain attempts are logged."""
        check_own_files(config)
        self.metadata = ((SECRET_METADATA, bearer(config.secret)),) if config.secret else ()
        """gRPC metadata of every call."""
        self.address = config.switches[0]
        """The one of the switches that this rank talks to."""
        self._open()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self.begin()

    def _open(self) -> None:
        self._channel = control_channel.open_channel(self._config, self.address)
        self.stub = control_pb2_grpc.ControlStub(self._channel)

    def begin(self) -> None:
        """A rank begins to wait: it has `Config.reconnect_s` to reach a switch, and says so again if it waits for
        long."""
        self._began_s = time.monotonic()
        self._said = {"others": False, "switch": False}
        self._tried: set[str] = set()  # the switches that were tried after another one
        self._in_vain: set[str] = set()  # and those after which another one was
        self._troubles: dict[tuple[str, str], str] = {}  # with TLS, by address and what gRPC says: looked at once

    def ask(self, method: grpc.UnaryUnaryMultiCallable[Request, Reply], request: Request, timeout_s: float) -> Reply:
        """The reply to a call that may take long. Raises `grpc.RpcError`, `SessionError` if this rank is to stop
        meanwhile, or the connection is closed, and `RuntimeError` if there is no thread for it."""
        try:
            stub = self.stub
            try:
                with self._lock:  # a Join that begins after `stop` would come after the Leave, and undo it
                    if self._closed.is_set():
                        raise ValueError(CLOSED_JOINING)
                    call = method.future(request, timeout=timeout_s, metadata=self.metadata)
            except RuntimeError:
                self.without_thread(stub)
                raise
            done = threading.Event()
            call.add_done_callback(lambda _: done.set())
            try:
                while not done.wait(STOP_POLL_S):
                    self.check_stop()
                    if self._late("others", WORD_AFTER_S):
                        why = self.why()
                        if not self._closed.is_set():  # else that is all that it says
                            waits = f"{self._config.who} has waited {WORD_AFTER_S:g} s to join"
                            log.log(self.level, "%s: %s %s", waits, why, THEIRS)
                return call.result()
            finally:
                # Where something was raised meanwhile, such as KeyboardInterrupt, the switch should not wait for it.
                call.cancel()  # type: ignore[no-untyped-call]
        except (ValueError, grpc.FutureCancelledError) as error:  # ValueError: the channel was closed meanwhile
            raise SessionError(CLOSED_JOINING, grpc.StatusCode.CANCELLED) from error

    def try_again(self, why: SessionError) -> None:
        """Wait a moment before the same switch, or the next of several, is tried. Raises ``why`` if it is too late."""
        tries_s = self._config.reconnect_s
        if time.monotonic() > self._began_s + tries_s:
            others = [f"the one at {address}" for address in sorted(self._in_vain - {self.address})]
            raise SessionError(f"{why}; nor was {' or '.join(others)} there", why.code) if others else why from None
        if self._late("switch", WORD_OF_SWITCH_AFTER_S):
            log.log(self.level, "%s tries again, for %g s in all (INAGG_RECONNECT): %s", self._config.who, tries_s, why)
        if len(self._config.switches) > 1:
            self._move_on(why)
        self.check_stop()
        if self._closed.wait(RETRY_S):
            raise SessionError(CLOSED_JOINING, grpc.StatusCode.CANCELLED)

    def _move_on(self, why: SessionError) -> None:
        """Talk to the next of the switches."""
        switches = self._config.switches
        with self._lock:
            if self._closed.is_set():
                return
            self._in_vain.add(self.address)
            before, self.address = self._channel, switches[(switches.index(self.address) + 1) % len(switches)]
            self._open()
        level = logging.DEBUG if self.address in self._tried else self.level  # once for each; they take turns
        log.log(level, "%s: %s; trying the one at %s", self._config.who, why, self.address)
        self._tried.add(self.address)
        control_channel.close_channel(before)

    def without_thread(self, stub: control_pb2_grpc.ControlStub) -> None:
        """A call of ``stub`` has failed because there is no thread for it: further ones go over another channel."""
        with self._lock:
            if stub is not self.stub or self._closed.is_set():
                return
            control_channel.abandon(self._channel)
            self._open()

    def check_stop(self) -> None:
        """Raises `SessionError` if this rank is to stop."""
        if (why := self._stop()) is not None:
            raise SessionError(why, grpc.StatusCode.CANCELLED)

    def _late(self, for_whom: str, after_s: float) -> bool:
        """Whether it has waited for longer, and this is the first time that it is asked for ``for_whom`` then."""
        if self._said[for_whom] or time.monotonic() < self._began_s + after_s:
            return False
        self._said[for_whom] = True
        return True

    def why(self) -> str:
        """The switch's account of what the job waits for; or why it cannot be asked, if that is not just a close."""
        try:
            reply = self.stub.Why(pb.WhyRequest(name=self._config.job), timeout=LOOK_S, metadata=self.metadata)
        except ValueError:  # the channel was closed meanwhile
            return ""
        except grpc.RpcError as error:
            return str(self.explain(error))
        return " ".join(reply.text)

    def stop(self) -> None:
        """End what waits, and try no other switch; calls can still be made. For `close`, before it."""
        with self._lock:
            self._closed.set()

    def close(self) -> None:
        """End all calls. Returns in `control_channel.CLOSE_S` at most."""
        control_channel.close_channel(self._channel)
        self._stop = ignore

    def explain(self, error: grpc.RpcError) -> SessionError:
        """The error of a call, in words for people. Where TLS may be the cause, this connects once more."""
        text = said = error.details() or ""
        leaf = text.startswith(LEAF_SAYS)
        text = GRPC_PREAMBLE.sub("", text)
        if error.code() in NOT_THERE and not leaf and "the switch" not in text:  # else it has answered
            if (trouble := self._tls_trouble(said)) is not None:
                return SessionError(f"cannot reach the switch at {self.address}: {trouble}", error.code())
            return SessionError(
                f"cannot reach the switch at {self.address}: is `inagg switch` running there? ({text}). INAGG_SWITCH "
                "says where it is; `inagg doctor` looks at the way",
                error.code(),
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return SessionError(str(why_unlike(0, f"the switch at {self.address}", "this rank")), error.code())
        if text == SILENT:
            return SessionError(
                f"the switch at {self.address} has not answered in time; `inagg doctor` looks at the way", error.code()
            )
        return SessionError(f"the switch at {self.address} says: {text}", error.code())

    def _tls_trouble(self, said: str) -> str | None:
        """See `tls_trouble`, which connects: once for each kind of failure while this waits."""
        address, troubles = self.address, self._troubles
        if (known := troubles.get((address, said))) is not None:
            return known
        found = tls_trouble(self._config, address, said)
        if found is not None:
            troubles[address, said] = found
        return found
