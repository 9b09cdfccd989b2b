"""Subscribers of jobs, each with the events that it has not been told yet. Bounded, however slowly they read."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator

from inagg_proto.v1 import control_pb2 as pb

from ..control.admission import name_of_principal
from ..control.jobs import Job
from ..control.policy import Policy
from ..control.refusals import Code, ControlError
from ..text import count_text


class Subscriber:
    """One stream: the events that its reader has still to take. ``member``: the rank's process that reads it; 0: none
    does."""

    def __init__(self, limit: int, principal: str = "", member: int = 0) -> None:
        self.principal, self.member = principal, member
        self._limit = limit
        self._events: deque[pb.Event] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: ControlError | None = None

    def put(self, event: pb.Event) -> None:
        """Add an event. If the reader lies too far behind, its stream ends: it can watch again from the state."""
        if self._ended:
            return
        if len(self._events) >= self._limit:
            self._events.clear()
            text = f"this watch lies {count_text(self._limit, 'event')} behind: watch again, from the present state"
            self.end(ControlError(Code.RESOURCE_EXHAUSTED, text))
            return
        self._events.append(event)
        self._changed.set()

    def end(self, error: ControlError | None = None) -> None:
        """No more events: the stream ends after those that there are, with ``error`` if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()

    async def events(self) -> AsyncIterator[pb.Event]:
        """The events as they come, until the stream ends. Raises `ControlError` if it ends with one."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._changed.clear()
            await self._changed.wait()


class Subscribers:
    """All subscribers, by the number of the job."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._by_job: dict[int, set[Subscriber]] = {}
        self._by_principal: Counter[str] = Counter()

    def add(self, job: Job, principal: str = "", member: int = 0) -> Subscriber:
        """A new subscriber. Raises `ControlError` if the job has too many of this kind, or ``principal``."""
        quota = self._policy.quota_watches
        if quota is not None and self._by_principal[principal] >= quota:
            raise ControlError(
                Code.RESOURCE_EXHAUSTED,
                f"{name_of_principal(principal)} watches {count_text(quota, 'stream')} already: close one",
            )
        subscribers = self._by_job.setdefault(job.number, set())
        alike = sum(bool(other.member) == bool(member) for other in subscribers)
        of_ranks = self._policy.watches_per_rank * job.spec.workers
        if alike >= (of_ranks if member else self._policy.watchers_per_job_max):
            raise ControlError(
                Code.RESOURCE_EXHAUSTED,
                f"job {job.name!r} has {count_text(alike, 'stream')} already: close one, or ask with Why and Stats",
            )
        subscriber = Subscriber(self._policy.watch_queue_max, principal, member)
        subscribers.add(subscriber)
        self._by_principal[principal] += 1
        return subscriber

    def remove(self, job: int, subscriber: Subscriber) -> None:
        """Forget a subscriber whose stream is over."""
        subscribers = self._by_job.get(job, set())
        if subscriber in subscribers:
            subscribers.discard(subscriber)
            self._by_principal[subscriber.principal] -= 1
        if not subscribers:
            self._by_job.pop(job, None)

    def has(self, job: int, member: int) -> bool:
        """Whether a process watches ``job``."""
        return any(subscriber.member == member for subscriber in self._by_job.get(job, ()))

    def put(self, job: int, event: pb.Event) -> None:
        """Tell all subscribers of a job; after `job_ended` their streams end."""
        for subscriber in self._by_job.get(job, ()):
            subscriber.put(event)
            if event.HasField("job_ended"):
                subscriber.end()

    def end_all(self, error: ControlError) -> None:
        """End all streams with ``error``."""
        for subscribers in self._by_job.values():
            for subscriber in subscribers:
                subscriber.end(error)
