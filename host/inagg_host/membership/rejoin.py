"""One rank's membership of one job, kept up: joined, reduced, joined again when an epoch ends, until it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from inagg_host import warmup
from inagg_host.config import Config
from inagg_host.core import Engine, Epoch, Operation, OutOfGenerations, Refused
from inagg_host.errors import AllReduceError, over_text
from inagg_host.io.thread import Transport
from inagg_host.stats import Counters, OperationCounters, Totals
from inagg_host.task import Task
from inagg_link import Address, Link
from inagg_link.first_start import compile_all, saying
from inagg_link.signals import Deferred
from inagg_wire.errors import Reason
from inagg_wire.formats import job_format

from .calls import SessionError
from .endpoint import Endpoint
from .session import Loss, Session
from .unheard import Seen, Unheard, done_text, where_text

log = logging.getLogger("inagg")

REJOINS_MAX = 8
"""New epochs one after the other, without a result between them, before a rank gives up."""

NO_THREAD = "can't start new thread"
"""What Python says where the process may have no more."""

DEADLINES_EVERY_S = 0.2

LAST_S, LAST_LOOK_S = 0.2, 0.002
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
        stop: Callable[[], str | None],
    ) -> None:
        """``stop`` is asked while this is being made: joining fails with the sentence that it returns, though other
        ranks may still come. When a job that runs joins again, it is not."""
        self.config = config
        self._counters, self._finished, self._broken = counters, finished, broken
        self._tasks: dict[Operation, Task] = {}  # in order; to be changed where the transport calls
        self._begun: dict[Operation, Totals] = {}  # likewise: what had been done when they were
        self._late: list[Task] = []  # begun when it was over
        self._lock = threading.Lock()
        self._over = False
        self.failure: AllReduceError | None = None
        """Why it has broken, if it has."""
        self._rejoining = False
        self._in_vain = 0
        self._closed = threading.Event()
        self._started = threading.Event()  # there is a transport, or there will be none

        def stop_starting() -> str | None:
            return None if self._started.is_set() else stop()

        self._session = Session(config, self._on_loss, self._on_credit, stop_starting, self._round_trip_s)
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
            if isinstance(error, SessionError | OSError):
                raise AllReduceError(str(error)) from None  # it says all; what was below it would only hide it
            if str(error) == NO_THREAD:
                raise AllReduceError(f"{error}: raise the limit of processes (ulimit -u; a container's pids)") from None
            raise
        self._counters.epochs += 1
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
        resume = self._session.resume(epoch, [0] * len(epoch.shards), why)
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
        """For heartbeats. On the session's thread."""
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
        unfinished = [*self._tasks.values(), *self._late]
        self._tasks.clear()
        self._begun.clear()
        self._late.clear()
        return unfinished

    # --- where the transport calls ---

    def _begin(self, task: Task) -> None:
        if self._over:
            self._late.append(task)
            return
        values, now = task.values.reshape(-1), time.monotonic()
        out = values if task.target is task.values else task.target.reshape(-1)  # in place: one array to look at
        try:
            if task.float_type is None:
                operation = self.engine.submit_max(values, out, now, task.tag)
            else:
                contributed = None if task.contributed is None else task.contributed.reshape(-1)
                operation = self.engine.submit(
                    values,
                    out,
                    task.float_type,
                    now,
                    task.divisor,
                    contributed,
                    task.codec,
                    task.tag,
                    task.scatters,
                )
        except Exception as error:  # of the caller's codec, perhaps: it is this task's alone
            failure = AllReduceError(f"an array of {values.size} elements of {values.dtype} cannot be summed: {error}")
            failure.__cause__ = error
            self._finished(task, failure)
            return
        self._tasks[operation] = task
        self._begun[operation] = self.transport.totals()

    def _on_finished(self, operation: Operation) -> None:
        self._in_vain = 0
        self._counters.operations += 1
        self._counters.invalid_codes += operation.invalid_codes
        self._counters.elements += operation.values.size
        task = self._tasks.pop(operation)
        task.work.counters = OperationCounters(
            operation.values.size,
            time.monotonic() - operation.submitted_s,
            self.engine.round_trip_s or 0.0,
            self.transport.totals().since(self._begun.pop(operation)),
        )
        self._finished(task, None)

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
            final = loss.final or self._in_vain >= REJOINS_MAX
            if self._rejoining and not final:
                return
            self._rejoining = True
        if final:
            threading.Thread(target=self._end, args=(loss.cause,), name="inagg-over", daemon=True).start()
        else:
            threading.Thread(target=self._rejoin, args=(loss,), name="inagg-rejoin", daemon=True).start()

    def _end(self, cause: str) -> None:
        """The job is over, when what has come is taken."""
        self._started.wait()
        until_s = time.monotonic() + LAST_S
        while not (self._over or self.engine.idle) and time.monotonic() < until_s:
            time.sleep(LAST_LOOK_S)
        self._break(AllReduceError(over_text(self.config.job, cause)))

    def _rejoin(self, loss: Loss) -> None:
        self._started.wait()  # the epoch may end as soon as it has begun
        if self._over:
            return
        log.warning("rank %d: %s; joining again", self.config.rank, loss.cause)
        self._in_vain += 1
        ready = threading.Event()
        positions: list[int] = []

        def stop() -> None:
            self.transport.pause()
            positions.extend(self.engine.positions)
            ready.set()

        self.transport.post(stop)
        ready.wait()
        resume = self._session.resume(self.engine.epoch, positions, loss.cause)
        try:
            epoch = self._session.join(self._bind, resume, multicast=self._endpoint.listens)
        except Exception as error:  # whatever it is: those who wait must hear of it
            self._break(AllReduceError(f"{loss.cause}; and a new epoch could not begin: {error}"), error)
            return
        with self._lock:
            self._rejoining = False
        blocks = [shard.resume_block for shard in epoch.shards]
        log.warning("rank %d: epoch %d begins, from block %s", self.config.rank, epoch.number, blocks)
        self.transport.post(lambda: self._resume(epoch))

    def _resume(self, epoch: Epoch) -> None:
        try:
            self.engine.resume(epoch, time.monotonic())
        except ValueError as error:
            self._break(AllReduceError(str(error)), error)
            return
        self._counters.epochs += 1
        if (why := self._endpoint.listen(epoch)) is not None:
            self._on_loss(Loss(why))
            return
        self.transport.proceed()

    def _break(self, failure: AllReduceError, cause: Exception | None = None) -> None:
        """It is over, for a reason."""
        failure.__cause__ = cause
        with self._lock:
            if self._over:
                return
            self._over = True
            self.failure = failure
        log.warning("rank %d: %s", self.config.rank, failure)
        if self._started.is_set():
            self.transport.post(self.transport.pause)
        # On a thread of its own: who hears of it closes this, which ends the thread that calls.
        threading.Thread(target=self._broken, args=(self, failure), name="inagg-broken", daemon=True).start()

    def _watch_deadlines(self) -> None:
        unheard = Unheard()
        self._started.wait()
        while not self._closed.wait(DEADLINES_EVERY_S):
            self._listen_for(unheard)
            oldest = next(iter(list(self._tasks)), None)
            if oldest is not None and time.monotonic() - oldest.submitted_s > self.config.timeout_s:
                text = (
                    f"no result within {self.config.timeout_s:g} s. {self._session.calls.why()}{self._done_for(oldest)}"
                )
                self._break(AllReduceError(text))
                return

    def _done_for(self, operation: Operation) -> str:
        """A sentence: what went to and fro since an operation began. The switch does not see what never arrives."""
        with self.transport.lock:
            if (begun := self._begun.get(operation)) is None:
                return ""
            done = self.transport.totals().since(begun)
        return f" {done_text(done.datagrams_out, done.resent, done.datagrams_in)}"

    def _listen_for(self, unheard: Unheard) -> None:
        """Warn if what this rank sends, or what it is answered, does not arrive."""
        shards = self.engine.state.shards
        waiting = (shards["snd_una"] < shards["snd_nxt"]).tolist()
        seen = Seen(*self.transport.datagrams(), any(waiting))
        if not unheard.asks(time.monotonic(), seen):
            return
        # Sums that a shard has yet to give are named alone: it may be the only one that a firewall stands before.
        leases = [shard for shard, waits in zip(self.engine.epoch.shards, waiting, strict=True) if waits]
        where = where_text([shard.address for shard in leases])
        counted = self._session.counted()
        if self.transport.datagrams()[-1] != seen.came:
            return  # while the switch was asked
        if (said := unheard.judge(time.monotonic(), seen, counted, where)) is not None:
            log.warning("rank %d of job %r: %s", self.config.rank, self.config.job, said)
