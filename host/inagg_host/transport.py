"""The thread that owns the socket: it moves batches between link and engine, and decides nothing.

Other threads hand it work through `post`, a queue and an eventfd; it hands results out through callbacks, which must be
short (a future is completed on another thread, since what users chain to it may block: see `completion`).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from inagg_wire.link import Batch, Link

from .counters import Counters, Totals
from .engine import Engine, Operation, OutOfGenerations
from .engine.window import FOREIGN, REPEATED
from .phases import Phase, Stopwatch, tracing
from .pump import Pump
from .signals import Deferred

T = TypeVar("T")

IDLE_S = 3600.0
REMIND_S = 0.05


class Transport:
    """Runs ``engine`` over ``link`` on a thread of its own, until `close`.

    ``finished`` is called with each operation that has its sums, ``failed`` with what the engine or the link raised;
    both on the transport's thread. After a failure nothing is sent or received until `proceed`.
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
        self._counters, self._watch = counters, Stopwatch(counters)
        self._strangers = 0
        self._finished, self._failed = finished, failed
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asleep = True
        self._bell = threading.Lock()  # around the eventfd, which others may still want to write when it is closed
        self._woken = False  # the eventfd is to be read
        self._paused = False
        self._closing = False
        self._streaming = False  # in a compiled loop, which waits for the eventfd as well
        self._pump = Pump(engine, link, counters)
        self._turn = threading.Lock()  # who holds it may use engine and link
        # One for each thread that waits, since a poll object serves one at a time.
        self._poll, self._guest_poll, self._quiet_poll = select.poll(), select.poll(), select.poll()
        for poll in (self._poll, self._guest_poll, self._quiet_poll):
            poll.register(self._wake, select.POLLIN)
        for poll in (self._poll, self._guest_poll):
            poll.register(link.fileno(), select.POLLIN)
        self._route()
        self._thread = threading.Thread(target=self._run, name="inagg-transport", daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Have the transport's thread call ``call``, soon. For any thread."""
        self._posted.append(call)
        if self._asleep or self._streaming:
            self._ring()

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
            self._ring()
            # A guest and the thread may wait for the same event, which only one of them reads: remind the other.
            while not self._turn.acquire(timeout=REMIND_S):
                self._ring()
            self._turn.release()
            self._ring()
            self._thread.join()
            with self._turn:
                while self._posted:
                    self._posted.popleft()()
                self._link.close()
                with self._bell:
                    os.close(self._wake)
                    self._wake = -1

    def _ring(self) -> None:
        """Wake whoever waits."""
        with self._bell:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _route(self) -> None:
        self._peers = [shard.address for shard in self.engine.epoch.shards]
        self._shards = {peer: shard for shard, peer in enumerate(self._peers)}

    def take(self, call: Callable[[], None]) -> bool:
        """Call ``call`` here if nobody is at work: then the caller has the turn, and must `drive`. Else `post`."""
        if self._posted or not self._turn.acquire(blocking=False):
            self.post(call)
            return False
        try:
            call()
        except BaseException:  # nobody will `drive`
            self._end_turn()
            raise
        return True

    def drive(self, done: Callable[[], bool], signals: Deferred) -> None:
        """After `take`: do the thread's work on the calling thread until ``done``, or the epoch ends, or a signal
        comes; then the thread goes on. To wait for the thread instead would cost two changes of threads."""
        signals.wake = lambda: os.eventfd_write(self._wake, 1)  # which nobody closes while this thread has the turn
        try:
            while not (done() or self._closing or signals.came):
                busy = self._take_turn()
                if self._paused:
                    break
                if not (busy or done()):
                    self._wait(self._guest_poll)
        finally:
            signals.wake = None
            self._end_turn()

    def _end_turn(self) -> None:
        """The thread goes on, if there is something left to do."""
        self._turn.release()
        if self._posted or not self.engine.idle:
            self._ring()

    def _run(self) -> None:
        while not self._closing:
            with self._turn:
                busy = self._take_turn()
            if not busy:
                self._asleep = True
                if not self._posted and not self._closing:  # looked at after the flag is up: no wake-up is lost
                    # Nothing that comes is needed while nothing is unfinished: a rank that has all its results has
                    # nothing to send again, and whoever lacks one has it from the switch.
                    quiet = self._paused or self.engine.idle
                    self._wait(self._quiet_poll if quiet else self._poll)
                self._asleep = False
        self.update_counters()

    def _take_turn(self) -> bool:
        """Do what was posted, receive and send; whether anything had come. Whoever calls holds the turn."""
        if self._woken:  # by whoever holds the turn, and will do what was posted: else it could be read for nothing
            self._woken = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()()
        return not self._paused and bool(self._guard(self._step))

    def _guard(self, call: Callable[[], T]) -> T | None:
        """``call``; None if it fails, and then it is all over."""
        try:
            return call()
        except Exception as error:  # whatever it is, those who wait must hear of it
            self._paused = True
            self._failed(error)
            return None
        finally:
            self._watch.begin(None)

    def _step(self) -> bool:
        """Receive what has come, send what may be sent; whether anything had come."""
        if self.engine.streaming.possible and not tracing() and self._stream():
            return True
        self._watch.begin(Phase.NETWORK)
        batches = self._link.receive(0.0)
        self._receive(batches)
        self._send()
        if self.engine.exhausted and not self.engine.idle:
            raise OutOfGenerations
        return bool(batches)

    def _receive(self, batches: list[Batch]) -> None:
        now_s = self._watch.begin(Phase.DECODE)
        for batch in batches:
            shard = self._shards.get(batch.peer)
            if shard is None:
                self._strangers += len(batch)
                continue
            for operation in self.engine.receive(shard, batch.data, batch.size, now_s):
                self._finished(operation)

    def _send(self, values: bool = True) -> None:
        begin = self._watch.begin
        for out in self.engine.outgoing(begin(Phase.ENCODE), values):
            begin(Phase.NETWORK)
            self._link.send(Batch(out.data, out.size, self._peers[out.shard]))
            begin(Phase.ENCODE)

    def _stream(self) -> bool:
        """Have values received and sent in a compiled loop, which also waits; False if they cannot be."""
        if self._pump.stuck:
            self._send(values=False)
            self._watch.begin(None)
        port = self._link.port()
        stream = None if port is None else self.engine.streaming.begin(port.buffer)
        if port is None or stream is None:
            return False
        self._streaming = True
        try:
            if self._posted:  # looked at after the flag is up: no wake-up is lost
                return True
            self._streamed(*self._pump.run(port, stream, self._peers, self._wake))
        finally:
            self._streaming = False
        return True

    def _streamed(self, finished: list[Operation], batches: list[Batch]) -> None:
        """What came of a compiled loop."""
        self._woken |= self._pump.woken
        for operation in finished:
            self._finished(operation)
        self._receive(batches)

    def _wait(self, poll: select.poll) -> None:
        """Until something comes, is posted or is due."""
        start_s = time.monotonic()
        due = [] if self._paused else [t for t in (self.engine.deadline, self._link.next_due_s) if t is not None]
        timeout_s = min(due) - start_s if due else IDLE_S
        for fd, _ in poll.poll(max(0.0, timeout_s) * 1e3):
            if fd == self._wake:
                self._woken = True
        if not self.engine.idle:
            self._counters.idle_s += time.monotonic() - start_s

    def totals(self) -> Totals:
        """What has been done so far, up to now. On the transport's thread, in a callback of an operation or a post."""
        c = self._counters
        self._watch.lap()
        resent = sum([w.resent for w in self.engine.windows])
        return Totals(*self._link.traffic, resent, c.encode_s, c.network_s, c.decode_s)

    def update_counters(self) -> None:
        """Bring into the counters what link and engine count themselves. On the transport's thread."""
        link, windows, c = self._link.counters, self.engine.windows, self._counters
        c.datagrams_out, c.datagrams_in = link.datagrams_out, link.datagrams_in
        c.bytes_out, c.bytes_in = link.bytes_out, link.bytes_in
        c.resent = sum(w.resent for w in windows)
        c.repeated = sum(int(w.counts[REPEATED]) for w in windows)
        c.foreign = self._strangers + sum(int(w.counts[FOREIGN]) for w in windows)
        c.rtt_s = max(w.rtt.smoothed_s for w in windows)
        c.rtt_least_s = min((w.rtt.least_s for w in windows if w.rtt.samples), default=0.0)
