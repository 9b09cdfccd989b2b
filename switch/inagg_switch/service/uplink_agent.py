"""A switch that has a parent: it opens a stream to it, and has its data planes do what comes on that.

Whenever the stream begins, its data planes know no job: what they knew is of epochs that ended with the stream before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
import structlog

from inagg_link.sockopt import ends_of_way
from inagg_proto import LEAF_SAYS, why_unlike
from inagg_proto.v1 import control_pb2 as pb
from inagg_wire.errors import AdmissionError

from ..addresses import resolved, split_address
from ..binding import Address
from ..driver import Driver, DriverError
from .access import Access, OpenedAccess
from .control_client import CONNECTION_LOST
from .driver_threads import DriverThreads
from .tls_trouble import tls_trouble
from .tree_messages import binding_from, hello_message, look_message
from .uplink import Uplink, Uplinks

RETRY_S: Final = 1.0
LOOK_S: Final = 5.0
FIND_S: Final = 5.0
"""Seconds that the parent may take to say where its data planes are."""
RENEW_RETRY_S: Final = 10.0
"""Seconds after which a new channel is tried again that the parent has refused."""
FINAL: Final = (
    grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION,
)  # fmt: skip
"""Status codes that do not get better by waiting, for a switch that was never attached."""

PINGS_LOST: Final = ("ping timeout", "keepalive", "goaway", "transport closed")
"""Words of gRPC's texts on a connection that the keepalive of `Uplink` has ended, or a server that ends."""

log = structlog.get_logger("inagg.tree")


def connection_lost(text: str) -> bool:
    """Whether what a call of UNAVAILABLE says is gRPC's account of the connection to the parent, and no switch's own
    sentence."""
    return not text.startswith(LEAF_SAYS) and any(words in text.lower() for words in (*CONNECTION_LOST, *PINGS_LOST))


class UplinkError(RuntimeError):
    """The parent does not want this switch; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt to have a stream."""

    why: str
    """The reason, for the log."""
    kind: object = None
    """Attempts that end one after the other for reasons of the same kind are logged once."""
    trouble: str | None = None
    """`UplinkAgent.trouble`, until another attempt has ended or succeeded."""
    no_tls: str | None = None
    """`UplinkAgent.no_tls`, until then."""


class UplinkAgent:
    """The stream of one switch to its parent, opened again whenever it ends."""

    def __init__(self, driver: Driver, name: str, parent: str, access: Access) -> None:
        """``parent``: host:port of its control service. To be called on the event loop. Raises `SecurityError`."""
        self.name, self.parent = name, parent
        self.attached = asyncio.Event()
        """Whether the stream stands."""
        self.trouble: str | None = None
        """Reason why the stream does not stand, though the parent can be reached; None else, or where that is not
        known."""
        self.no_tls: str | None = None
        """Reason why the parent cannot be reached, if that is TLS."""
        self._ever = False
        """Whether it has ever stood."""
        self._driver, self._access, self._loop = driver, access, asyncio.get_running_loop()
        self._threads = DriverThreads(driver)
        self._uplinks = Uplinks(parent, access.now())
        self._renewing: asyncio.Task[None] | None = None
        self._parents: list[Address] = []
        """The parent's data planes."""
        self._jobs: set[int] = set()
        self.looks_answered = True
        """Whether the shards answered when the parent asked for their counters last."""
        self._call: grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachOrder] | None = None
        self._restarting = 0
        """Number of shards that are being started again."""
        self._restarted = asyncio.Event()
        """Set when there are none."""
        self._restarted.set()

    async def run(self) -> None:
        """Keep the stream for as long as the switch serves. Raises `UplinkError` if the parent refuses it before it was
        attached."""
        logged: object = None
        while True:
            ended = await self._attempt()
            if ended is None:
                self.attached.clear()
                continue
            if self.attached.is_set() or ended.kind != logged:  # once for each reason: a parent may be away for long
                log.warning("parent_lost", parent=self.parent, why=ended.why, then="trying again until it is back")
            logged, self.trouble, self.no_tls = ended.kind, ended.trouble, ended.no_tls
            self.attached.clear()
            await asyncio.sleep(RETRY_S)

    async def _attempt(self) -> Ended | None:
        """Open the stream and serve on it until it ends; None: it did so, or was not opened, to start a shard again.
        Raises `UplinkError` as `run`."""
        self._take_next()
        with self.uplink.used() as uplink:
            try:
                await self._restarted.wait()
                await self._drop_all()
                host = await self._find_parents(uplink)
                if not self._restarted.is_set():
                    return None  # a shard died meanwhile
                await self._serve(uplink, host)
                return Ended("the parent has ended the stream")
            except grpc.aio.AioRpcError as error:
                return await self._refused(error, uplink)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # this task is to end; else the stream has: gRPC says it so, whoever has cancelled it
                if not self._restarted.is_set():  # we have, to start a shard again
                    return None
                why = "the stream was cancelled on its way"
                return Ended(why, kind=why)
            except (DriverError, OSError, UplinkError) as error:
                if isinstance(error, UplinkError) and not self._ever:
                    raise
                why = str(error)
                return Ended(why, kind=why, trouble=why)

    async def _refused(self, error: grpc.aio.AioRpcError, uplink: Uplink) -> Ended:
        """Tell what is known of why the parent has no stream for this switch, or cannot be reached. Raises
        `UplinkError` if the switch was never attached, and waiting does not help."""
        code, said = error.code(), error.details() or ""
        final: str | None = None
        trouble: str | None = f"its parent at {self.parent} says: {said}"
        no_tls: str | None = None
        if said.startswith(LEAF_SAYS):
            trouble = said
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            trouble = final = why_unlike(0, f"the switch at {self.parent}", "this switch")
        elif code is grpc.StatusCode.UNAVAILABLE:
            trouble = None
            no_tls = await self._look_at_tls(uplink, said)
            if no_tls is not None:
                final = f"cannot reach {self.parent}: {no_tls}"
        elif said == "Deadline Exceeded":  # gRPC's own
            trouble = f"its parent at {self.parent} does not answer in time"
        if code in FINAL:
            hint = f" ({self.shown} of this switch)" if code is grpc.StatusCode.PERMISSION_DENIED else ""
            final = f"{self.parent} refuses this switch: {said}{hint}"
        if final is not None and not self._ever:
            raise UplinkError(final) from None
        if no_tls is not None:
            return Ended(no_tls, no_tls, None, no_tls)
        return Ended(f"{code.name}: {error.details()}", code, trouble)

    @property
    def shown(self) -> str:
        """The option, or variable, by which the parent knows who this switch is."""
        if self._access.secret_file is not None:
            return "--parent-secret-file"
        return "INAGG_SECRET" if self._access.secret or not self._access.certificate else "--tls-cert"

    async def _look_at_tls(self, uplink: Uplink, said: str) -> str | None:
        """Tell what is wrong with TLS on that channel; None if nothing is to be seen, or if another is in use by now.
        Where the switch was attached before, it looks only if what gRPC has ``said`` may come of TLS: the parent may be
        away for long."""
        if uplink not in (self.uplink, self._uplinks.next):
            return None
        found = await asyncio.to_thread(tls_trouble, self.parent, uplink.access, said if self._ever else None)
        return f"{found} (this switch reads its files again at SIGHUP)" if found is not None and self._ever else found

    @property
    def uplink(self) -> Uplink:
        """The channel to the parent for whatever begins now."""
        return self._uplinks.now

    def read(self) -> OpenedAccess:
        """The access to the parent with what the files hold now, for `renew`. Raises `SecurityError`."""
        return self._access.now()

    def renew(self, access: OpenedAccess) -> None:
        """Use ``access`` from now on: at once where the stream does not stand, else when the parent has answered on a
        new channel. The stream that stands is left alone, so that no job sees anything of it: what begins after its end
        is on the new channel in any case. To be called on any thread."""
        with suppress(RuntimeError):  # the loop has ended, and the switch does
            self._loop.call_soon_threadsafe(self._renew, access)

    def _renew(self, access: OpenedAccess) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        uplink = self._uplinks.offer(access)
        if uplink is not None and not self.attached.is_set():
            self._take_next()
        elif uplink is not None:
            self._renewing = self._loop.create_task(self._try(uplink))

    def _take_next(self) -> None:
        if self._uplinks.take_next():
            log.info("parent_access_renewed", parent=self.parent)

    async def _try(self, uplink: Uplink) -> None:
        """Take ``uplink`` as soon as the parent answers on it: with files that it refuses, all calls of ranks through
        this switch would fail, though those from before serve as long as their connection stands."""
        logged: object = None
        while self._uplinks.next is uplink:
            with uplink.used():
                try:
                    await uplink.stub.DataPlanes(
                        pb.DataPlanesRequest(), timeout=FIND_S, metadata=uplink.access.metadata
                    )
                except grpc.aio.AioRpcError as error:
                    no_tls = await self._look_at_tls(uplink, error.details() or "")
                    why, kind = no_tls or f"{error.code().name}: {error.details()}", no_tls or error.code()
                else:
                    self._take_next()
                    return
            if kind != logged and self._uplinks.next is uplink:
                then = "going on with those from before for as long as the connection stands, and trying again"
                log.warning("parent_access_not_renewed", parent=self.parent, why=why, then=then)
            logged = kind
            await asyncio.sleep(RENEW_RETRY_S)

    async def look_now_and_then(self) -> None:
        """Look at the switch, where that is elsewhere, for as long as it serves: gRPC pings a server from which it
        hears nothing, and a server takes pings without calls for an attack. A parent asks every second, but there may
        be none."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(DriverError):  # that it has gone is seen by its stream
                await self._threads.look((), 0)

    async def restart(self, shard: int) -> None:
        """Start a shard again that has died: the stream ends, so that all its jobs get new epochs, and begins anew."""
        self._restarting += 1
        self._restarted.clear()
        if self._call is not None:
            self._call.cancel()
        try:
            await self._threads.restart(shard)
        finally:
            self._restarting -= 1
            if not self._restarting:
                self._restarted.set()

    async def close(self) -> None:
        """End the stream."""
        for begun in (self._call, self._renewing):
            if begun is not None:
                begun.cancel()
        await self._uplinks.close()
        await self._threads.close()

    async def _drop_all(self) -> None:
        for job in sorted(self._jobs):
            await self._threads.unbind(job)
        self._jobs.clear()

    async def _serve(self, uplink: Uplink, host: str) -> None:
        call = self._call = uplink.stub.Attach(None, metadata=uplink.access.metadata)
        assert call is not None
        hello = hello_message(self.name, self._driver.shards, self._driver.limits, host)
        try:
            await call.write(pb.AttachRequest(hello=hello))
            async for order in call:
                if order.HasField("attached"):
                    log.info("attached", parent=self.parent, name=self.name)
                    self._ever = True
                    self.trouble = self.no_tls = None
                    self.attached.set()
                    continue
                answer = await self._answer(order)
                if answer is None:
                    continue
                answer.number = order.number
                with suppress(asyncio.InvalidStateError):  # the stream has ended meanwhile: the loop raises why
                    await call.write(pb.AttachRequest(answer=answer))
        finally:
            call.cancel()

    async def _find_parents(self, uplink: Uplink) -> str:
        """Ask the parent where its data planes are; from where the own ones send to them, as a literal address. Raises
        `UplinkError` if they cannot work together."""
        reached = await asyncio.to_thread(resolved, split_address(self.parent)[0])
        own = next((shard.address[0] for shard in self._driver.shards if not shard.anywhere), "")
        question = pb.DataPlanesRequest(host=reached, own=own)
        reply = await uplink.stub.DataPlanes(question, timeout=FIND_S, metadata=uplink.access.metadata)
        if (unlike := why_unlike(reply.protocol, f"the switch at {self.parent}", "this switch")) is not None:
            raise UplinkError(unlike)
        self._parents = [(there.host or reached, there.port) for there in reply.addresses]
        return own or ends_of_way(*self._parents[0])[0]

    async def _answer(self, order: pb.AttachOrder) -> pb.Answer | None:
        """Carry out an order, and tell how that went. None: a shard has died, so the stream is about to end, and jobs
        get new epochs by that; by an order that failed they would end."""
        what = order.WhichOneof("order")
        try:
            answer = await self._carry_out(order)
        except (DriverError, AdmissionError, ValueError) as error:
            if what != "look" or self.looks_answered:  # of looks, which are many, the first that fails
                log.error("order_failed", order=what, why=str(error))
            answer = pb.Answer(error=str(error)[:1000])
        if what == "look":
            self.looks_answered = not answer.error
        return answer if not answer.error or self._driver.died() is None else None

    async def _carry_out(self, order: pb.AttachOrder) -> pb.Answer:
        if order.HasField("bind"):
            bound, own = order.bind.shards, len(self._driver.shards)
            if not len(bound) == len(self._parents) == own:
                raise ValueError(f"{len(bound)} bindings for {own} shards below {len(self._parents)}")
            bindings = [binding_from(*pair) for pair in zip(bound, self._parents, strict=True)]
            self._jobs.add(bindings[0].job)
            await self._threads.bind(bindings)
        elif order.HasField("unbind"):
            await self._threads.unbind(order.unbind.job)
            self._jobs.discard(order.unbind.job)
        elif order.HasField("look"):
            found = await self._threads.look(order.look.jobs, order.look.limit)
            shards = zip(self._driver.shards, found, strict=True)
            return pb.Answer(
                shards=[
                    look_message(shard, counters, {job: told for job, told in waits.items() if told is not None})
                    for shard, (counters, waits) in shards
                ]
            )
        else:
            raise ValueError("an order that this version does not know")
        return pb.Answer()
