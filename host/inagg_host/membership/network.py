"""One rank's membership of one job, kept up: joined, reduced, joined again when an epoch ends, until it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from inagg_host import warmup
from inagg_host.closed import ignore
from inagg_host.config import Config
from inagg_host.core import Engine, Epoch, Operation, OutOfGenerations, Refused
from inagg_host.errors import AllReduceError, over_text
from inagg_host.io.tally import Traffic
from inagg_host.io.transport import Transport
from inagg_host.stats import Counters
from inagg_host.task import Task
from inagg_link.addresses import Address
from inagg_link.base import Link
from inagg_link.first_start import compile_all, saying
from inagg_link.limits import NO_THREAD, advised
from inagg_link.signals import Deferred
from inagg_wire.errors import Reason
from inagg_wire.formats import job_format

from .calls import SessionError
from .deadlines import Deadlines
from .endpoint import Endpoint
from .session import OVER, Loss, Session

log = logging.getLogger("inagg")

REJOINS_MAX = 8
"""New epochs one after the other, without a result between them, before a rank gives up."""

DEADLINES_EVERY_S = 0.2

LAST_S, LAST_POLL_S = 0.2, 0.002
"""How long a job that is over takes what has come, and how often it looks whether that was all that it waited for: who
ends a job, as a script does that handles an error of all ranks, has its sums, and others may have them in their sockets
only."""

STALE_EPOCH = frozenset({Reason.WRONG_TOKEN, Reason.UNKNOWN_JOB})
"""Refusals that a new epoch mends; the others mean that rank and switch do not agree what the job is."""


class Network:
    """The way through the switch. Made when all ranks have joined; ends with `close`, or breaks, once and for good.

    ``finished`` is called on a thread of the transport with each task that has its sums, and None, or on the caller's
    with one that could not begin, and why. ``broken`` is called once, with this and why, on a thread of its own; the
    tasks that are then unfinished come out of `close`. Raises `AllReduceError`.
    """

    def __init__(
        self,
        config: Config,
        counters: Counters,
        finished: Callable[[Task, AllReduceError | None], None],
        broken: Callable[[Network, AllReduceError], None],
        wrap_link: Callable[[Link], Link] | None,
        limit_s: Callable[[], float],
        stop: Callable[[], str | None],
        level: int = logging.WARNING,
    ) -> None:
        """``limit_s``: how long sums may take now. ``stop`` is asked while this is being made: joining fails with the
        sentence that it returns, though other ranks may still come. When a job that runs joins again, it is not.
        ``level``: of what is logged meanwhile of waits and vain attempts."""
        self.config, self._limit_s = config, limit_s
        self._counters, self._finished, self._broken = counters, finished, broken
        # In order, and `Transport.datagrams` when they were begun; to be changed where the transport calls.
        self._tasks: dict[Operation, tuple[Task, Traffic]] = {}
        self._late: list[Task] = []  # begun when it was over
        self._lock = threading.Lock()
        self._over = False
        self.failure: AllReduceError | None = None
        """Why it has broken, if it has."""
        self._rejoining = False
        self._put_off: deque[Callable[[], None]] = deque()  # of `_aside`
        self._in_vain = 0
        self._closed = threading.Event()
        self._started = started = threading.Event()  # there is a transport, or there will be none

        def stop_starting() -> str | None:
            return None if started.is_set() else stop()

        self._session = Session(config, self._on_loss, self._on_credit, stop_starting, self._round_trip_s)
        self._session.calls.level = level
        self._endpoint = Endpoint(wrap_link)
        try:
            # Before the others can wait for this rank: on a new machine it compiles.
            with saying(log.warning, f"rank {config.rank}'s loops"):
                compile_all(warmup.units(job_format(config.format)), config.rank)
            epoch = self._join()
            link = self._endpoint.link
            self.engine = Engine(epoch, config.policy == "fallback", link.batch_datagrams)
            self._deadlines = threading.Thread(target=self._watch_deadlines, name="inagg-deadlines", daemon=True)
            self._deadlines.start()
            self.transport = Transport(self.engine, link, counters, self._on_finished, self._on_error)
        except BaseException as error:
            self._over = True
            self._closed.set()
            self._started.set()
            self._session.close("failed to start")
            self._endpoint.close()
            if isinstance(error, SessionError | OSError) or str(error) == NO_THREAD:
                raise AllReduceError(advised(error)) from None  # it says all; what was below it would only hide it
            raise
        self._counters.epochs += 1
        self._session.calls.level = logging.WARNING
        self._started.set()
        self._check()

    def _check(self) -> None:
        """Raise why it has broken, if it has while it was being made."""
        if self.failure is not None:
            self.close()
            raise self.failure

    def _join(self) -> Epoch:
        """Join for the first time."""
        epoch = self._session.join(self._bind, multicast=self._endpoint.listens)
        if (why := self._endpoint.listen(epoch)) is None:
            return epoch
        self._rejoining = True  # that the epoch ends is no news
        resume = self._session.resume(epoch, [0] * len(epoch.shards), False, why)
        epoch = self._session.join(self._bind, resume)
        self._rejoining = False
        return epoch

    def _bind(self) -> Address:
        return self._endpoint.bind(self._session.local_host(), self._started.is_set())

    def _on_credit(self, blocks: int) -> None:
        """The switch has room for so many blocks of this rank. On the session's thread."""
        if self._started.is_set() and not self._over:  # else the epoch that begins says it
            self.engine.limit(blocks)

    def _round_trip_s(self) -> float | None:
        """Round trip for heartbeats. On the session's thread."""
        return self.engine.round_trip_s if self._started.is_set() and not self._over else None

    def submit(self, task: Task) -> None:
        """Begin a task. For any thread; tasks begin in the order of the calls."""
        self.transport.submit(lambda: self._begin(task), awaited=task.codec is not None)

    def submit_and_drive(self, task: Task, signals: Deferred) -> Callable[[], None]:
        """Begin a task; what to call then, to help with the work until it is done, or a signal comes. Both where
        handlers are put off."""
        if self.transport.take(lambda: self._begin(task)):
            return lambda: self.transport.drive(task.work.done, signals)
        return lambda: None

    def close(self, reason: str = "", end: bool = False) -> list[Task]:
        """Leave the job (``end``: end it for all ranks) and stop; the tasks that are unfinished, in order."""
        with self._lock:
            self._over = True
        self._closed.set()
        self._session.close(reason, end)
        self.transport.close()
        unfinished = [*(task for task, _ in self._tasks.values()), *self._late]
        self._tasks.clear()
        self._late.clear()
        self._finished = self._broken = ignore
        self._limit_s = float  # which is 0: nothing is waited for
        return unfinished

    # --- where the transport calls ---

    def _begin(self, task: Task) -> None:
        if self._over:
            self._late.append(task)
            return
        try:
            operation = self.engine.submit(task, time.monotonic())
        except Exception as error:  # of the caller's codec, perhaps: it is this task's alone
            what = f"an array of {task.values.size} elements of {task.values.dtype}"
            failure = AllReduceError(f"{what} cannot be summed: {error}")
            failure.__cause__ = error
            self._finished(task, failure)
            return
        self._tasks[operation] = task, self.transport.datagrams()

    def _on_finished(self, operation: Operation) -> None:
        self._in_vain = 0
        self._counters.operations += 1
        self._counters.invalid_codes += operation.invalid_codes
        self._counters.elements += operation.request.values.size
        self._finished(self._tasks.pop(operation)[0], None)

    def _on_error(self, error: Exception) -> None:
        stale = isinstance(error, Refused) and error.reason in STALE_EPOCH
        if stale or isinstance(error, OutOfGenerations):
            self._on_loss(Loss(str(error)))
        else:
            self._break(AllReduceError(str(error)), error)

    # --- when things go wrong ---

    def _on_loss(self, loss: Loss) -> None:
        """The epoch is over: join again, or give up. On any thread."""
        with self._lock:
            if self._over:
                return
            if self._rejoining and not loss.final:
                return  # if it is the loss of the epoch that only begins, the next heartbeat tells it again
            in_vain = self._in_vain >= REJOINS_MAX
            self._rejoining = True
        if loss.final or in_vain:
            cause = loss.cause if loss.final else f"{loss.cause}, as {REJOINS_MAX} epochs before ended without a result"
            self._aside("inagg-over", lambda: self._end(cause))
        else:
            self._aside("inagg-rejoin", lambda: self._rejoin(loss))

    def _aside(self, name: str, call: Callable[[], None]) -> None:
        """Have ``call`` called on a thread of its own, or, where there are no more, on the one that is there anyway."""
        try:
            threading.Thread(target=call, name=name, daemon=True).start()
        except RuntimeError:
            self._put_off.append(call)

    def _end(self, cause: str) -> None:
        """The job is over, when what has come is taken."""
        self._started.wait()
        until_s = time.monotonic() + LAST_S
        while not (self._over or self.engine.idle) and time.monotonic() < until_s:
            time.sleep(LAST_POLL_S)
        self._break(AllReduceError(over_text(self.config.job, cause)))

    def _rejoin(self, loss: Loss) -> None:
        self._started.wait()  # the epoch may end as soon as it has begun
        if self._over:
            return
        log.warning("%s: %s; joining again", self.config.who, loss.cause)
        if self._tasks:  # else there was nothing to sum, and an epoch that ends is no sign that sums do not come
            self._in_vain += 1
        ready = threading.Event()
        positions: list[int] = []

        def stop() -> None:
            self.transport.pause()
            positions.extend(self.engine.positions)
            ready.set()  # nothing is taken from now on

        self.transport.post(stop)
        while not ready.wait(DEADLINES_EVERY_S):
            if self._closed.is_set():  # what is posted then may never be called
                return
        resume = self._session.resume(self.engine.epoch, positions, self.engine.has_results, loss.cause)
        try:
            epoch = self._session.join(self._bind, resume, multicast=self._endpoint.listens)
        except Exception as error:  # whatever it is: those who wait must hear of it
            if isinstance(error, SessionError) and error.code is OVER:
                self._break(AllReduceError(over_text(self.config.job, str(error))), error)
                return
            why = f"a new epoch could not begin: {advised(error)}"
            if loss.cause.partition(": ")[0] != str(error).partition(": ")[0]:  # else they say the same, as of a switch
                why = f"{loss.cause}; and {why}"
            self._break(AllReduceError(why), error)
            return
        blocks = [shard.resume_block for shard in epoch.shards]
        log.warning("%s: epoch %d begins, from block %s", self.config.who, epoch.number, blocks)
        self.transport.post(lambda: self._resume(epoch))

    def _resume(self, epoch: Epoch) -> None:
        try:
            self.engine.resume(epoch, time.monotonic())
        except ValueError as error:
            self._break(AllReduceError(str(error)), error)
            return
        with self._lock:  # not before: a loss would have this rank join again with what it had in the epoch before
            self._rejoining = False
        self._counters.epochs += 1
        if (why := self._endpoint.listen(epoch)) is not None:
            self._on_loss(Loss(why))
            return
        self.transport.proceed()

    def _break(self, failure: AllReduceError, cause: Exception | None = None) -> None:
        """End it, for a reason."""
        failure.__cause__ = cause
        with self._lock:
            if self._over:
                return
            self._over = True
            self.failure = failure
        log.warning("%s: %s", self.config.who, failure)
        if self._started.is_set():
            self.transport.post(self.transport.pause)
        # On a thread of its own: who hears of it closes this, which ends the thread that calls.
        self._aside("inagg-broken", lambda: self._broken(self, failure))

    def _watch_deadlines(self) -> None:
        self._started.wait()
        if self._closed.is_set():
            return
        deadlines = Deadlines(self.config, self._limit_s, self._session, self.transport, self._tasks)
        while not self._closed.wait(DEADLINES_EVERY_S):
            while self._put_off:
                self._put_off.popleft()()
            if not self._over and (why := deadlines.missed()) is not None:
                self._break(AllReduceError(why))
