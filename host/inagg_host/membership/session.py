"""A rank's conversation with the control service: join, heartbeats, what happens to the others, leave."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from inagg_host.closed import ignore
from inagg_host.config import Config, literal_host
from inagg_host.core import Epoch, ShardLease
from inagg_host.errors import brief
from inagg_link.addresses import Address, resolved, split_address
from inagg_link.limits import advised
from inagg_link.sockopt import ends_of_way
from inagg_proto import PROTOCOL, why_unlike
from inagg_proto.v1 import control_pb2 as pb
from inagg_wire.formats import job_format
from inagg_wire.slots import Lease

from .calls import CALL_S, LOOK_S, NOT_THERE, RETRY_S, Calls, SessionError
from .control_channel import CLOSE_S
from .reachability import SwitchCounts, switch_counts

log = logging.getLogger("inagg")

HEARTBEATS_MISSED = 3
"""Heartbeats in a row that must fail to reach the switch before it counts as gone."""

OVER = grpc.StatusCode.ABORTED
"""Code of calls of a rank whose job was ended for good."""
LEAVES = 3
"""How often a rank that cannot reach the switch tries to leave. The others wait for who has not left, as it may come
back, and do not hear why it went; and nobody else can be that rank for a while."""
UNREACHABLE = (*NOT_THERE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Loss:
    """The epoch is over, as far as this rank can tell."""

    cause: str
    """A sentence."""
    final: bool = False
    """The job has ended: there is nothing to join again."""


class Session:
    """One rank's membership of one job. For any thread; ``lost`` and ``credited`` are called on the session's own."""

    def __init__(
        self,
        config: Config,
        lost: Callable[[Loss], None],
        credited: Callable[[int], None],
        stop: Callable[[], str | None],
        round_trip_s: Callable[[], float | None],
    ) -> None:
        """``credited`` is called with the blocks that the switch has room for, now and then; ``stop`` is asked while
        `join` waits, which fails with the sentence that it returns; ``round_trip_s`` says what heartbeats tell the
        switch, None: nothing is measured yet."""
        self._config = config
        self.calls = Calls(config, stop)
        self._lost = lost
        self._credited = credited
        self._round_trip_s = round_trip_s
        self._member = secrets.randbits(63) + 1
        self._lanes, self._window = config.lanes, config.window
        self._epoch = 0
        # Of the thread that watches: ranks that have left; the epoch that events are of, 0: the job has not run there.
        self._left: set[int] = set()
        self._watched_epoch = 0
        self._unnamed = ""  # where the switch's data goes if a lease names no host
        self._interval_s = 1.0
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._watch: grpc.CallIterator[pb.Event] | None = None
        self._threads: list[threading.Thread] = []

    # --- joining ---

    def local_host(self) -> str:
        """The literal address from which datagrams to the switch's data planes go. Asks the switch where they are, and
        looks for the way, again and again, as `join` does. Raises `SessionError`, or `ConfigError` where it begins at
        an address that others cannot answer to."""
        given = literal_host(self._config.host) if self._config.host else ""
        while True:
            there, hint = f"the switch at {self.calls.address}", ". INAGG_SWITCH says where it is"
            try:
                control = resolved(split_address(self.calls.address)[0])  # more often than gRPC asks for a name
                hint = ""
                question = pb.DataPlanesRequest(host=control, own=given)
                answer = self.calls.ask(self.calls.stub.DataPlanes, question, CALL_S)
                if (unlike := why_unlike(answer.protocol, there, "this rank")) is not None:
                    raise SessionError(unlike, grpc.StatusCode.FAILED_PRECONDITION)
                data = answer.addresses[0]
                host = self._unnamed = data.host or control
                there = f"{host}, where the data of {there} goes"
                return given or literal_host(ends_of_way(host, data.port)[0])
            except grpc.RpcError as error:
                explained = self.calls.explain(error)
                if error.code() not in (*NOT_THERE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise explained from None
            except OSError as error:
                explained = SessionError(f"no way to {there}: {advised(error)}{hint}", grpc.StatusCode.UNAVAILABLE)
            self.calls.try_again(explained)

    def join(
        self, address: Callable[[], Address], resume: pb.Resume | None = None, *, multicast: bool = False
    ) -> Epoch:
        """Wait until all ranks have joined; the epoch that begins. Tries again while the switch cannot be reached,
        or the next of several, for `Config.reconnect_s`. ``address``: asked each time where this rank's datagrams come
        from. ``multicast``: this rank can take results from a group. Raises `SessionError`, and what ``address`` does.
        """
        c = self._config
        spec = pb.JobSpec(
            name=c.job, workers=c.workers, format=c.format, lanes=self._lanes, window=self._window, seed=c.seed,
            heartbeat_limit_s=c.heartbeat_limit_s, rejoin_limit_s=c.rejoin_limit_s,
        )  # fmt: skip
        request = pb.JoinRequest(
            spec=spec, rank=c.rank, member=self._member, resume=resume, multicast=multicast, protocol=PROTOCOL,
        )  # fmt: skip
        self.calls.begin()
        while True:
            host, port = address()
            del request.addresses[:]
            request.addresses.add(host=host, port=port)
            asked_s = time.monotonic()
            try:
                reply = self.calls.ask(self.calls.stub.Join, request, c.join_timeout_s)
                break
            except grpc.RpcError as error:
                explained = self.calls.explain(error)
                if error.code() not in NOT_THERE:
                    raise explained from None
                if time.monotonic() > asked_s + CALL_S:  # to find nobody takes less: the switch was there till now
                    self.calls.begin()
                self.calls.try_again(explained)
        epoch = self._read_epoch(reply)
        # What a switch chose stays, also where another one takes its place: blocks are kept in this size.
        self._lanes, self._window = reply.spec.lanes, reply.spec.window
        with self._lock:
            self._epoch, self._interval_s = epoch.number, reply.heartbeat_interval_s
        if not self._threads:
            for target in (self._beat, self._listen):
                thread = threading.Thread(target=target, name=f"inagg{target.__name__}", daemon=True)
                thread.start()
                self._threads.append(thread)
        return epoch

    def resume(self, epoch: Epoch, positions: Sequence[int], has_results: bool, reason: str) -> pb.Resume:
        """The argument of the next `join`: ``positions``, by shard, as `Engine.positions`; ``has_results`` likewise."""
        shards = [
            pb.Position(slots=shard.lease.slots, next_block=position)
            for shard, position in zip(epoch.shards, positions, strict=True)
        ]
        return pb.Resume(
            epoch=epoch.number, seed=epoch.seed, shards=shards, reason=brief(reason), has_results=has_results
        )

    def _read_epoch(self, reply: pb.JoinResponse) -> Epoch:
        shards = tuple(
            ShardLease(
                (s.lease.address.host or self._unnamed, s.lease.address.port),
                Lease(s.lease.base, s.lease.slots),
                s.resume_block,
                (s.group.host, s.group.port) if s.HasField("group") else None,
            )
            for s in reply.shards
        )
        spec = reply.spec
        return Epoch(
            reply.epoch, reply.job, reply.token, job_format(spec.format), spec.workers, self._config.rank, spec.lanes,
            spec.seed, shards, reply.credit or None, reply.scatters,
        )  # fmt: skip

    # --- while it runs ---

    def _beat(self) -> None:
        missed = 0
        while not self._closed.wait(self._interval_s):
            epoch, stub = self._epoch, self.calls.stub
            request = pb.HeartbeatRequest(
                name=self._config.job, rank=self._config.rank, member=self._member, round_trip_s=self._round_trip_s()
            )
            try:
                reply = stub.Heartbeat(request, timeout=CALL_S, metadata=self.calls.metadata)
            except ValueError:
                continue  # the channel was closed: this rank talks to another switch now
            except grpc.RpcError as error:
                if stub is not self.calls.stub:
                    continue
                missed += 1
                if error.code() not in UNREACHABLE or missed >= HEARTBEATS_MISSED:
                    self._tell(epoch, Loss(str(self.calls.explain(error)), final=error.code() is OVER))
                continue
            missed = 0
            if reply.state != pb.JOB_STATE_RUNNING or reply.epoch != epoch:
                self._tell(epoch, Loss("the epoch is over"))
            elif reply.credit:
                self._credited(reply.credit)

    def _listen(self) -> None:
        while not self._closed.is_set():
            stub = self.calls.stub
            try:
                request = pb.WatchRequest(name=self._config.job, rank=self._config.rank, member=self._member)
                watch = stub.Watch(request, metadata=self.calls.metadata)
                with self._lock:
                    if self._closed.is_set():  # `close` cannot have seen it
                        watch.cancel()  # type: ignore[no-untyped-call]
                        return
                    self._watch = watch
                for event in watch:
                    self._hear(event)
            except ValueError:
                continue  # the channel was closed: this rank talks to another switch now
            except RuntimeError as error:  # there is no thread for the call: it is asked again
                self.calls.without_thread(stub)
                log.warning("%s cannot listen to the switch: %s", self._config.who, advised(error))
            except grpc.RpcError as error:
                over = error.code() is OVER
                if (over or error.code() in NOT_THERE) and not self._closed.is_set() and stub is self.calls.stub:
                    self._tell(self._epoch, Loss(str(self.calls.explain(error)), final=over))
            self._closed.wait(RETRY_S)

    def _hear(self, event: pb.Event) -> None:
        """An event, which may be late: then this rank may have joined again already."""
        kind = event.WhichOneof("event")
        if kind == "member_failed":
            failed = event.member_failed
            self._tell_watched(Loss(failed.text or f"rank {failed.rank} was given up"))
        elif kind == "epoch_started":
            self._watched_epoch = event.epoch_started.epoch
        elif kind == "epoch_ended":
            self._tell(event.epoch_ended.epoch, Loss(event.epoch_ended.text))
        elif kind == "state":  # of ranks that left before this began to watch nothing else tells
            self._watched_epoch = event.state.epoch
            self._left = {member.rank for member in event.state.members if member.state == pb.MEMBER_STATE_LEFT}
        elif kind == "member_joined":
            self._left.discard(event.member_joined.rank)
        elif kind == "member_left":
            self._left.add(event.member_left.rank)
        elif kind == "stalled":
            if gone := sorted(self._left.intersection(event.stalled.ranks)):
                ranks = ", ".join(map(str, gone))
                text = (
                    f"rank {ranks} has left the job, and what it has not sent is waited for. Have all ranks sum as "
                    "many times: DistributedSampler and drop_last=True give all of them as many batches, and DDP's "
                    "`with model.join():` lets some have fewer"
                )
                self._tell_watched(Loss(text, final=True))
        elif kind == "job_ended":
            self._tell_watched(Loss(event.job_ended.text, final=True))

    def _tell_watched(self, loss: Loss) -> None:
        """Tell of a loss that events say, unless they are of an epoch before this rank's."""
        if (epoch := self._epoch) <= self._watched_epoch or not self._watched_epoch:
            self._tell(epoch, loss)

    def _tell(self, epoch: int, loss: Loss) -> None:
        with self._lock:
            if self._closed.is_set() or epoch != self._epoch:
                return
        self._lost(loss)

    def counted(self) -> SwitchCounts | str | None:
        """Counts that the switch has of this rank, or a sentence on what keeps it from counting; None if it does not
        know this rank, or is asked too much."""
        request = pb.StatsRequest(name=self._config.job)
        try:
            reply = self.calls.stub.Stats(request, timeout=LOOK_S, metadata=self.calls.metadata)
        except ValueError:  # the channel was closed meanwhile
            return None
        except grpc.RpcError as error:
            return None if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else str(self.calls.explain(error))
        if reply.silent:
            return f"the switch at {self.calls.address} says: {'; '.join(reply.silent)}"
        return switch_counts(reply, self._config.rank)

    def close(self, reason: str = "", end: bool = False) -> None:
        """Leave the job; ``end`` ends it for all. No error if the switch is gone or this is called twice."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            watch = self._watch
        self.calls.stop()
        if self._epoch:
            request = pb.LeaveRequest(
                name=self._config.job, rank=self._config.rank, member=self._member, end=end, reason=brief(reason)
            )
            self._leave(request)
        if watch is not None:
            watch.cancel()  # type: ignore[no-untyped-call]
        self.calls.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)  # one may be left that waits for gRPC, and does nothing any more
        self._lost = self._credited = self._round_trip_s = ignore

    def _leave(self, request: pb.LeaveRequest) -> None:
        for tries_left in reversed(range(LEAVES)):
            try:
                self.calls.stub.Leave(request, timeout=CALL_S, metadata=self.calls.metadata)
                return
            except grpc.RpcError as error:
                # Then there is nothing to leave, or the switch will notice the silence.
                log.debug("leaving job %s: %s", self._config.job, error.details())
                if error.code() not in NOT_THERE or not tries_left:
                    return
            time.sleep(RETRY_S)
