"""A control channel with faults: a servicer that passes the calls of ranks on to a real switch, and by a seeded plan is
late, refuses, loses replies, and breaks off."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
from tests.switch.background import BackgroundServer

from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.service.server import ControlServer
from inagg_switch.software.software_driver import SoftwareConfig, SoftwareDriver

PATIENCE_S = 30.0
BROKEN: Final = "Socket closed"
"""Text of what breaks off, which is one of gRPC's."""
RECONNECT: Final = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50))


@dataclass(frozen=True, slots=True)
class Faults:
    """How much goes wrong."""

    late: float = 0.0
    """Probability that a request is late, and a reply likewise, by up to ``late_s``; of the events of a Watch, each."""
    late_s: float = 0.0
    refused: float = 0.0
    """Probability that a call fails before the switch hears of it."""
    lost: float = 0.0
    """Probability that it fails when the switch has done it."""
    broken_s: float = 0.0
    """Time after which a Watch breaks off, on the average; 0: never."""


CALM = Faults()


class RealSwitch:
    """A software switch with its control service, which can be started again: then it knows nothing any more."""

    def __init__(self) -> None:
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Serve, at the same address as before."""
        self._driver = SoftwareDriver(SoftwareConfig(host="127.0.0.1", port=0))
        self._server = BackgroundServer(ControlServer(self._driver, self.address))
        self._server.start()
        self.address = self._server.address

    def stop(self) -> None:
        """End, and forget all."""
        self._server.stop(0.0)
        self._driver.close()

    def restart(self) -> None:
        """`stop`, and `start`."""
        self.stop()
        self.start()


def _passed_on(call: str) -> Any:
    """The method of a servicer for a ``call``."""
    return lambda servicer, request, context: servicer.pass_on(call, request, context)


class FaultyControl(control_pb2_grpc.ControlServicer):
    """The faulty way to the switch at ``upstream``: a context manager, whose `address` ranks are given.

    The n-th call of a rank of one kind meets the same faults whenever the ``seed`` is the same.
    """

    def __init__(self, upstream: str, faults: Faults, seed: int) -> None:
        self.faults = faults
        """May be changed at any time."""
        self.told: list[str] = []
        """What was done, and went wrong, in order."""
        self._seed = seed
        self._counts: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._channel = grpc.insecure_channel(upstream, RECONNECT)
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self._pool = ThreadPoolExecutor(64, "faulty-control")
        self._server = grpc.server(self._pool)
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._server.stop(None).wait(PATIENCE_S)
        self._channel.close()
        self._pool.shutdown()

    # --- the faults ---

    def _luck(self, call: str, rank: int) -> tuple[random.Random, str]:
        with self._lock:
            self._counts[call, rank] += 1
            name = f"{rank} {call} {self._counts[call, rank]}"
        return random.Random(f"{self._seed} {name}"), name

    def _say(self, text: str) -> None:
        self.told.append(text)

    def _late(self, luck: random.Random, what: str) -> None:
        chance, share = luck.random(), luck.random()
        if chance < self.faults.late:
            self._say(f"{what} is late by {share * self.faults.late_s:.2f} s")
            self._over.wait(share * self.faults.late_s)

    def pass_on(self, call: str, request: Any, context: grpc.ServicerContext) -> Any:
        """Make a call of the switch for a rank; the reply."""
        rank = getattr(request, "rank", -1)
        luck, name = self._luck(call, rank)
        refused, lost = luck.random(), luck.random()
        self._late(luck, f"request {name}")
        if refused < self.faults.refused:
            self._say(f"{name} is refused")
            context.abort(grpc.StatusCode.UNAVAILABLE, BROKEN)
        if not context.is_active():
            self._say(f"{name}: who asked is gone")
            context.abort(grpc.StatusCode.CANCELLED, "cancelled")
        method = getattr(self._stub, call)
        future = method.future(request, timeout=context.time_remaining())
        if not context.add_callback(future.cancel):
            future.cancel()  # who asked is gone
        try:
            reply = future.result()
        except grpc.FutureCancelledError:
            context.abort(grpc.StatusCode.CANCELLED, "cancelled")
        except grpc.RpcError as error:
            self._late(luck, f"reply {name}")
            self._say(f"{name}: {error.code()} {error.details()}")
            context.abort(error.code(), error.details() or "")
        self._late(luck, f"reply {name}")
        if lost < self.faults.lost:
            self._say(f"reply {name} is lost")
            context.abort(grpc.StatusCode.UNAVAILABLE, BROKEN)
        if call != "Heartbeat":
            self._say(f"{name}: done")
        return reply

    DataPlanes, Join, Heartbeat, Leave = map(_passed_on, ("DataPlanes", "Join", "Heartbeat", "Leave"))
    Stats, Why = map(_passed_on, ("Stats", "Why"))

    def _unknown(self, *arguments: Any, **named: Any) -> Any:
        """No rank makes the other calls."""
        raise NotImplementedError

    Create = List = Evict = Drain = Attach = _unknown

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]:  # noqa: N802
        rank = request.rank
        luck, name = self._luck("Watch", rank)
        refused, lasts = luck.random(), luck.expovariate(1.0)
        self._late(luck, name)
        if refused < self.faults.refused:
            self._say(f"{name} is refused")
            context.abort(grpc.StatusCode.UNAVAILABLE, BROKEN)
        watch = self._stub.Watch(request)
        broken = threading.Event()

        def break_off() -> None:
            if self.faults.broken_s:
                self._say(f"{name} breaks off")
                broken.set()
                watch.cancel()  # type: ignore[no-untyped-call]

        timer = threading.Timer(lasts * self.faults.broken_s, break_off) if self.faults.broken_s else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        if not context.add_callback(watch.cancel):
            watch.cancel()  # type: ignore[no-untyped-call]
        try:
            for event in watch:
                self._late(luck, f"{name}'s {event.WhichOneof('event')}")
                if broken.is_set():
                    break
                yield event
            else:
                self._say(f"{name} is over")
                return
        except grpc.RpcError as error:
            if not broken.is_set():
                self._say(f"{name}: {error.code()} {error.details()}")
                context.abort(error.code(), error.details() or "")
        finally:
            watch.cancel()  # type: ignore[no-untyped-call]
            if timer is not None:
                timer.cancel()
                timer.join()
        context.abort(grpc.StatusCode.UNAVAILABLE, BROKEN)
