"""The thread that owns the socket: it moves batches between link and engine, and decides nothing.

Other threads hand it work, by `submit` and `post`, two queues and an eventfd; it hands results out through callbacks,
which must be short (a future is completed on another thread, since what users chain to it may block: see `futures`).

Where a device waits for operations, from the first such one on, this thread stays in compiled code (`serve`): whoever
submits gives the engine its operation himself, and another thread hands out results. Else one thread for all of it
takes less time (100 sums of 4 KiB at once, two workers on two processors: a tenth to a fifth).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from inagg_host.closed import ignore
from inagg_host.core import Engine, Operation
from inagg_host.io.phases import Phase, Ranges, Stopwatch, tracing
from inagg_host.stats import Counters
from inagg_link.base import Link
from inagg_link.signals import Deferred
from inagg_link.waiting import let_run

from .loop import Loop
from .step import Steps
from .tally import Tally, Traffic

IDLE_S = 3600.0
REMIND_S = 0.05
SPINS, NAP_S = 50, 2e-5
"""Looks without a sleep in between, and the sleep after that: to look takes some us, the least sleep 70 or 100."""
PR_SET_TIMERSLACK, SLACK_NS = 29, 1000
"""include/uapi/linux/prctl.h. The kernel's own slack, 50 us, is more than what a device is given before the engine
looks again for what it brings (`core.send`)."""


class Transport:
    """Runs ``engine`` over ``link`` on a thread of its own, until `close`.

    ``finished`` is called with each operation that has its sums, in their order, ``failed`` with what the engine or the
    link raised. After a failure nothing is sent or received until `proceed`.
    """

    def __init__(
        self,
        engine: Engine,
        link: Link,
        counters: Counters,
        finished: Callable[[Operation], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.engine = engine
        self._link = link
        self.lock = threading.RLock()
        """The lock for whoever uses the engine, but for compiled code, or changes the counters."""
        ranges = Ranges()
        self._loop = Loop(engine, link, ranges.begin)
        self._watch = Stopwatch(self._loop.phases, ranges)
        self._steps = Steps(engine, link, self._watch)
        self._tally = Tally(engine, link, self._loop, self._steps, counters)
        self._finished, self._failed = finished, failed
        self._to_begin: deque[Callable[[], None]] = deque()
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.Lock()  # around the eventfd, which others may still want to write when it is closed
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)  # the loop rings it, see there
        self._collector: threading.Thread | None = None
        self._woken = False  # the eventfd is to be read
        self._stays = False  # in compiled code, since a device waits for operations
        self._lent = True  # the link lends what a compiled loop needs, as far as is known
        self._paused = False
        self._closing = False
        self._turn = threading.Lock()  # who holds it sends and receives
        # One for each thread that waits, since a poll object serves one at a time.
        self._poll, self._guest_poll, self._quiet_poll = select.poll(), select.poll(), select.poll()
        for poll in (self._poll, self._guest_poll, self._quiet_poll):
            poll.register(self._wake, select.POLLIN)
        for poll in (self._poll, self._guest_poll):
            poll.register(link.fileno(), select.POLLIN)
        self._route()
        self._thread = threading.Thread(target=self._run, name="inagg-transport", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # there are no more threads, and whoever comes back to the switch tries again and again
            os.close(self._wake)
            os.close(self._bell)
            raise

    # --- for other threads ---

    def post(self, call: Callable[[], None]) -> None:
        """Have ``call`` called by whoever has the turn, soon. For any thread."""
        self._posted.append(call)
        self._request_python()

    def submit(self, begin: Callable[[], None], awaited: bool = False) -> None:
        """Have ``begin`` called, which gives the engine an operation; if a device will wait for that (``awaited``), or
        has waited for another, here and now. In the order of the calls. For any thread, on the main one where handlers
        are put off."""
        self._to_begin.append(begin)
        with self.lock:  # so that no other one is begun here meanwhile: see `runs_without_python`
            if awaited and not self._stays:
                self._loop.stay()
                self._stays = True
            if self._stays:
                self._begin()
                self.wake()
            else:
                self._request_python()

    def runs_without_python(self) -> bool:
        """Return when what was submitted, if a device will wait for it, comes to its end without Python: see `loop`.
        False where the network is in trouble, since only Python can mend that, and with a link that lends nothing to
        compiled loops."""
        with self.lock:
            if not self.engine.awaited:
                return True
            submitted = self.engine.submitted
        spins = 0
        while self._lent and not (self._paused or self._closing or self.engine.idle):
            if self._loop.serves >= submitted and not self._loop.python_requested:
                return True
            spins += 1
            if spins < SPINS:
                let_run()
            else:
                time.sleep(NAP_S)
        return self.engine.idle

    def wake(self) -> None:
        """Have whoever has the turn look again at what can be done. For any thread."""
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _request_python(self) -> None:
        """Have whoever has the turn come back to Python."""
        self._loop.python_requested = True
        self.wake()

    def pause(self) -> None:
        """Neither send nor receive until `proceed`: the epoch is over. On the transport's thread."""
        self._paused = True

    def proceed(self) -> None:
        """Go on, perhaps with other shards. On the transport's thread."""
        self._route()
        self._paused = False

    def close(self) -> None:
        """End the thread and close the link; what was posted is still called, here. No error if called twice."""
        if not self._closing:
            self._closing = True
            self._request_python()
            # A guest and the thread may wait for the same event, which only one of them reads: remind the other.
            while not self._turn.acquire(timeout=REMIND_S):
                self._request_python()
            self._turn.release()
            self._request_python()
            self._thread.join()
            os.eventfd_write(self._bell, 1)
            if self._collector is not None:
                self._collector.join()
            with self._turn:
                self._call_posted()
                self._begin()
                self._link.close()
                with self._waking:
                    os.close(self._wake)
                    self._wake = -1
                os.close(self._bell)
            self._finished = self._failed = ignore

    def _route(self) -> None:
        self._peers = [shard.address for shard in self.engine.epoch.shards]

    def take(self, begin: Callable[[], None]) -> bool:
        """Call ``begin`` here if nobody is at work: then the caller has the turn, and must `drive`. Else `submit`."""
        if self._posted or not self._turn.acquire(blocking=False):
            self.submit(begin)
            return False
        try:
            self._to_begin.append(begin)
            self._begin()
        except BaseException:  # nobody will `drive`
            self._end_turn()
            raise
        return True

    def drive(self, done: Callable[[], bool], signals: Deferred) -> None:
        """Do the thread's work on the calling thread, after `take`, until ``done``, or the epoch ends, or a device or a
        signal comes; then the thread goes on. To wait for the thread instead would cost two changes of threads."""
        signals.wake = lambda: os.eventfd_write(self._wake, 1)  # which nobody closes while this thread has the turn
        try:
            while not (done() or self._closing or signals.came):
                busy = self._take_turn(guest=True)
                if self._paused or self._loop.awaited:
                    break
                if not (busy or done()):
                    self._wait(self._guest_poll)
        finally:
            signals.wake = None
            self._end_turn()

    def _begin(self) -> None:
        """Give the engine all that was submitted."""
        with self.lock:
            while self._to_begin:
                self._to_begin.popleft()()
            if self._collector is None and self.engine.awaited and not self._closing:
                collector = threading.Thread(target=self._collect, name="inagg-finished", daemon=True)
                collector.start()
                self._collector = collector

    def _end_turn(self) -> None:
        """The thread goes on, if there is something left to do."""
        self._turn.release()
        if self._to_begin or self._posted or not self.engine.idle:
            self.wake()

    # --- with the turn ---

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS), 0, 0, 0)
        while not self._closing:
            with self._turn:
                busy = self._take_turn(guest=False)
            if not (busy or self._to_begin or self._posted or self._closing):
                # Nothing that comes is needed while nothing is unfinished: a rank that has all its results has nothing
                # to send again, and whoever lacks one has it from the switch.
                self._wait(self._quiet_poll if self._paused or self.engine.idle else self._poll)
        self.update_counters()

    def _take_turn(self, guest: bool) -> bool:
        """Do what was posted, receive and send; whether there may be more to do at once."""
        if self._woken:  # by whoever has the turn, and will do what was posted: else it could be read for nothing
            self._woken = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        try:
            self._call_posted()
            self._begin()
            if self._paused:
                return False
            stays, idle = self._stays and not guest, self.engine.idle
            port = self._link.port() if stays or not idle else None
            self._lent = port is not None or not stays
            if port is None:
                if idle and self._link.next_due_s is None:
                    return False
                with self.lock:
                    return self._steps.step(self._peers, self._finished)
            # What it does is shown only where it may come to Python to show it.
            self._loop.run(port, self._peers, self._wake, self._bell, tracing() and not stays, guest)
            self._woken |= self._loop.woken
            self._hand_out(self.engine.news)
            return True
        except Exception as error:
            self._break(error)
            return False
        finally:
            with self.lock:
                self._watch.begin(None)
                self._tally.count_phases()

    def _break(self, error: Exception) -> None:
        """Whatever it is, those who wait must hear of it."""
        self._paused = True
        self._failed(error)

    def _call_posted(self) -> None:
        self._loop.python_requested = False
        while self._posted:
            with self.lock:
                self._posted.popleft()()

    def _hand_out(self, take: Callable[[], list[Operation]]) -> None:
        """Tell of the operations that are finished, which ``take`` takes out of the engine."""
        with self.lock:
            for operation in take():
                self._finished(operation)

    def _collect(self) -> None:
        while not self._closing:
            os.eventfd_read(self._bell)
            try:
                self._hand_out(self.engine.finished)  # what went wrong is for who has the turn
                if not self.engine.idle:  # those for which there was no room have it now
                    self.wake()
            except Exception as error:
                self._failed(error)

    def _wait(self, poll: select.poll) -> None:
        """Until something comes, is posted or is due."""
        start_s, idle = time.monotonic(), self.engine.idle
        try:
            due = [] if self._paused else [t for t in (self.engine.deadline, self._link.next_due_s) if t is not None]
            timeout_s = min(due) - start_s if due else IDLE_S
            for fd, _ in poll.poll(max(0.0, timeout_s) * 1e3):
                if fd == self._wake:
                    self._woken = True
        except Exception as error:
            self._break(error)
        if not idle:
            self._loop.phases[Phase.IDLE] += time.monotonic() - start_s

    # --- what was done ---

    def datagrams(self) -> Traffic:
        """See `Tally.datagrams`. For any thread."""
        with self.lock:
            return self._tally.datagrams()

    def update_counters(self) -> None:
        """See `Tally.update`. For any thread."""
        with self.lock:
            self._tally.update()
