"""A server that tests call, in verbs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from tests.switch.background import LoopThread
from tests.switch.control.world import RecordingDriver
from tests.switch.service.member_client import MemberClient

from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.server import ControlServer

T = TypeVar("T")


def job_spec(name: str = "job", workers: int = 2, **rest: object) -> pb.JobSpec:
    """A spec that the switch can serve."""
    fields = {"format": "nat8", "lanes": 1448, "window": 16, **rest}
    return pb.JobSpec(name=name, workers=workers, **fields)  # type: ignore[arg-type]


def join_request(rank: int, spec: pb.JobSpec | None = None, **rest: object) -> pb.JoinRequest:
    """A Join of rank ``rank`` with its own member number and port."""
    fields: dict[str, object] = {
        "protocol": PROTOCOL,
        "member": 100 + rank,
        "addresses": [pb.Address(host="127.0.0.1", port=4000 + rank)],
        **({"spec": spec or job_spec()} if "name" not in rest else {}),
        **rest,
    }
    return pb.JoinRequest(rank=rank, **fields)  # type: ignore[arg-type]


def resume(epoch: pb.JoinResponse, *next_blocks: int, reason: str = "") -> pb.Resume:
    """What a rank of an epoch brings: the next block of each shard."""
    shards = [
        pb.Position(slots=shard.lease.slots, next_block=block)
        for shard, block in zip(epoch.shards, next_blocks, strict=True)
    ]
    return pb.Resume(epoch=epoch.epoch, seed=epoch.spec.seed, shards=shards, reason=reason)


class Call(threading.Thread, Generic[T]):
    """A call in a thread of its own: its result, or the error."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._result: T | None = None
        self._error: ControlCallError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except ControlCallError as error:
            self._error = error

    def result(self, timeout_s: float = 10) -> T:
        """What it gave. Raises what it raised, and TimeoutError if it still waits."""
        self.join(timeout_s)
        if self.is_alive():
            raise TimeoutError("the call still waits")
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


@dataclass
class Serving:
    """A server, its switch, and a client of it."""

    driver: RecordingDriver
    server: ControlServer
    client: MemberClient
    loop: LoopThread

    def join_all(self, spec: pb.JobSpec | None = None, **rest: object) -> list[pb.JoinResponse]:
        """All ranks of a job join at once."""
        spec = spec or job_spec()
        calls = [self.join_later(rank, spec, **rest) for rank in range(spec.workers)]
        return [call.result() for call in calls]

    def join_later(self, rank: int, spec: pb.JobSpec | None = None, **rest: object) -> Call[pb.JoinResponse]:
        """A Join in a thread of its own."""
        return Call(partial(self.client.join, join_request(rank, spec, **rest)))

    def beat(
        self, rank: int, name: str = "job", member: int | None = None, round_trip_s: float | None = None
    ) -> pb.HeartbeatResponse:
        """A heartbeat."""
        number = 100 + rank if member is None else member
        return self.client.heartbeat(
            pb.HeartbeatRequest(name=name, rank=rank, member=number, round_trip_s=round_trip_s)
        )

    def leave(self, rank: int, name: str = "job", **rest: object) -> pb.LeaveResponse:
        """A rank leaves."""
        return self.client.leave(
            pb.LeaveRequest(name=name, rank=rank, member=100 + rank, **rest)  # type: ignore[arg-type]
        )

    def until(self, condition: Callable[[], object], timeout_s: float = 5) -> None:
        """Wait until something is so."""
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < give_up_at, "it did not come about in time"
            time.sleep(0.005)

    def job(self, name: str = "job") -> pb.Job:
        """The job as List shows it."""
        return next(job for job in self.client.list().jobs if job.spec.name == name)

    def waiting(self, *ranks: int, name: str = "job") -> None:
        """Wait until these ranks, and no others, wait in the barrier."""

        def so() -> bool:
            jobs = [job for job in self.client.list().jobs if job.spec.name == name]
            waiting = [m.rank for job in jobs for m in job.members if m.state == pb.MEMBER_STATE_WAITING]
            return waiting == list(ranks)

        self.until(so)

    def stop(self, grace_s: float = 2.0) -> None:
        """Stop the server; no error if it has stopped."""
        self.loop.run(self.server.stop(grace_s), 10)

    def close(self) -> None:
        """Stop the server and close the client."""
        self.stop(0)
        self.client.close()
