"""The all-reduce: arrays in, their sums over all ranks out, through the switch; and what happens when that fails."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from struct import pack
from typing import Any, Self, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from inagg_link.base import Link
from inagg_link.signals import Deferred
from inagg_wire.scale import FloatType

from .codec import Job
from .codec.staging import Codec
from .config import Config, ConfigError, ConfigOptions, refuse_unknown
from .core import Engine
from .core.reconcile import InnerGroup
from .errors import CLOSED_JOINING, CLOSED_SUMMING, FORKED, AllReduceError, again, over_text
from .io.futures import CallbackExecutor, Work
from .membership.failure_channel import JoinFailureChannel, publishing_failure
from .membership.fallback import Fallback
from .membership.network import Network
from .stats import Counters
from .task import Task, make_max_task, make_task

__all__ = ["AllReduce", "AllReduceError"]

log = logging.getLogger("inagg")
T = TypeVar("T")


class AllReduceOptions(ConfigOptions, total=False):
    """The arguments of `AllReduce`, for what passes them on."""

    inner: InnerGroup | None
    wrap_link: Callable[[Link], Link] | None
    failure_channel: JoinFailureChannel | None


class AllReduce:
    """Sums arrays over all ranks of a job, in the network.

        with AllReduce(switch="10.0.0.1:47100", rank=0, workers=4) as all_reduce:
            all_reduce(gradients)  # in place
            work = all_reduce.submit(others)
            ...
            work.result()

    Takes the fields of `Config`; what is not given comes from the environment. The constructor returns when all ranks
    have joined. All ranks must submit arrays of the same sizes and types in the same order. Methods may be called from
    any thread. Raises `ConfigError` or `AllReduceError`.

    With the policy "raise", the first thing that cannot be mended fails everything that is unfinished, on all ranks,
    and everything that comes. With "fallback" it goes on, from the same tensors, on ``inner``, and returns to the
    switch when that is back. What ``inner`` cannot do either fails: a rank that is gone is missing there, too.
    """

    def __init__(
        self, *, inner: InnerGroup | None = None, wrap_link: Callable[[Link], Link] | None = None,
        failure_channel: JoinFailureChannel | None = None, **options: Unpack[ConfigOptions],
    ) -> None:  # fmt: skip
        """``inner``: for the policy "fallback", a group that nothing else uses. ``wrap_link`` may put something around
        the sockets, such as `inagg_link.fault_link.FaultLink`. ``failure_channel``, if ranks have one, keeps them from
        waiting for a rank that cannot join."""
        refuse_unknown(options, AllReduceOptions.__annotations__)
        self.config = Config.from_environment(**options)
        self.timeout_s = self.config.timeout_s
        """Seconds that a sum may take, from its submission. May be changed at any time, and counts from then on, also
        for what was submitted before."""
        if self.config.policy == "fallback" and inner is None:
            raise ConfigError(
                'the policy "fallback" needs an inner group to fall back to, as the PyTorch adapters have'
            )
        self._inner, self._wrap_link = inner, wrap_link
        self._counters = Counters()
        self._callbacks = CallbackExecutor()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._turns = itertools.count()
        self._failure: AllReduceError | None = None
        self._closed = False
        self._network: Network | None = None
        self._fallback: Fallback | None = None
        try:
            with publishing_failure(failure_channel) as stop:
                network = self._join(stop)
        except AllReduceError as error:
            if self.config.policy == "raise":
                self._callbacks.shutdown()
                raise
            self._fall_back(None, [], error)
        except BaseException:
            self._callbacks.shutdown()
            raise
        else:
            self._use(network)
        atexit.register(self.close)

    def _join(self, stop: Callable[[], str | None], level: int = logging.WARNING) -> Network:
        return Network(
            self.config, self._counters, self._finish, self._on_broken, self._wrap_link, lambda: self.timeout_s, stop,
            level,
        )  # fmt: skip

    def _use(self, network: Network) -> None:
        """Have ``network`` do what is submitted from now on."""
        with self._lock:
            self._network = network
            failure = network.failure
        if failure is not None:  # it broke before it was in use, when nobody listened
            self._on_broken(network, failure)

    # --- use ---

    def __call__(self, values: npt.NDArray[Any], out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Sum ``values`` over all ranks, into ``out`` or in place, and return where. See `submit`."""
        # The number first: what a handler raised before that would leave this out, and nobody would know.
        turn = next(self._turns)
        return self.submit(values, out, wait=True, turn=turn).result()

    def submit(
        self,
        values: npt.NDArray[Any],
        out: npt.NDArray[Any] | None = None,
        float_type: FloatType | None = None,
        divisor: int = 1,
        contributed: npt.NDArray[Any] | None = None,
        tag: int = 0,
        wait: bool = False,
        scatter: bool = False,
        turn: int | None = None,
    ) -> Work:
        """Begin to sum ``values``, an array of any shape, into ``out`` or in place; returns at once, or, with ``wait``,
        when it is done: then this thread may do the work, and need not wait for another to wake up.

        Both must be contiguous, and must not be touched until the work is done. ``float_type`` is needed for bfloat16
        alone, whose bits come as uint16. ``divisor``: divide the sums by it, for a mean. ``contributed``, an array of
        its own like ``values``, gets what this rank adds to the sum: what the codes stand for that it sends, so what
        error feedback has to subtract. ``tag``, 32 bits: what the caller knows it by on all ranks. Where ranks submit
        in different orders, it tells arrays of one size apart, and all ranks get an error in place of sums of other
        arrays. ``turn``: from `take_turn`. Raises ValueError for what cannot be summed, `AllReduceError` if all is
        over.

        A call counts though it raises. So ranks that all catch the same error go on, and where one rank alone had it,
        as of memory, what it submits next is an error on all of them, in place of sums of different arrays. What a
        handler of a signal raises meanwhile is raised when this has begun: the sums come all the same.

        With ``scatter``, a reduce-scatter: ``values`` are an equal piece for each rank, and this rank's sums go to
        ``out``, which may be the same memory as its piece of ``values``, or none of them; there is no ``contributed``.
        Where the switch can do it, each sum comes to its rank alone, so of an all-reduce's bytes one part in as many as
        there are ranks comes back; with the policy "fallback", all ranks get all sums, to pass on what others lack.
        """
        turn = next(self._turns) if turn is None else turn
        with Deferred() as signals:
            pieces = self.config.workers if scatter else None
            task = make_task(values, out, float_type, divisor, contributed, pieces, self.config.rank)
            work = self.begin(task, turn, tag, signals if wait else None)
        if wait:
            work.exception()
        return work

    def take_turn(self) -> int:
        """The number of an operation, for who has something to do before it is submitted that may fail on this rank
        alone. Each must be submitted, but for those that have failed."""
        return next(self._turns)

    def begin(
        self, task: Task, turn: int, tag: int, signals: Deferred | None = None, codec: Codec | None = None
    ) -> Work:
        """Begin a task as `submit` does, for who has put handlers off, as must be done from `take_turn` on: ``signals``
        to do the work here until one comes. See `submit_task` for ``codec``."""
        task.tag, task.codec = zlib.crc32(pack(">II", turn & 0xFFFFFFFF, tag & 0xFFFFFFFF)), codec
        if signals is None:
            self._begin(task, lambda network: network.submit(task))
        else:
            self._begin(task, lambda network: network.submit_and_drive(task, signals))()
        return task.work

    def submit_task(self, task: Task, turn: int, tag: int, codec: Codec) -> Work:
        """Begin a task whose values ``codec`` brings, with arrays that nobody else has, and of which nobody checks that
        they fit. Of values on a device (`Staging`) needs the policy "raise": the inner group could not sum them.
        ``turn``: from `take_turn`. Otherwise as `submit`."""
        with Deferred():
            return self.begin(task, turn, tag, codec=codec)

    def submit_max(self, values: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8] | None = None) -> Work:
        """Begin to take the maximum over all ranks of each byte of ``values``, into ``out`` or in place.

        Goes through the switch in blocks of scales. Otherwise as `submit`.
        """
        turn = next(self._turns)
        with Deferred():
            return self.begin(make_max_task(values, out), turn, tag=0)

    def _begin(self, task: Task, submit: Callable[[Network], T]) -> T | Callable[[], None]:
        """``submit`` the task to the network if there is one, and return what that does."""
        if os.getpid() != self._process:
            raise AllReduceError(FORKED)
        with self._lock:
            if self._failure is not None:
                raise again(self._failure)
            if not task.values.size:
                self._finish(task, None)
            elif self._fallback is not None:
                self._fallback.submit(task)
            elif self._network is not None:
                return submit(self._network)
        return lambda: None

    def job(self, float_type: FloatType) -> Job:
        """The job, for values of a type. Raises `AllReduceError` while there is no switch."""
        return self._engine.job(float_type)

    @property
    def chunk(self) -> int:
        """Blocks whose scales are sent together, see `core.engine.Engine`. Raises as `job`."""
        return self._engine.chunk

    @property
    def _engine(self) -> Engine:
        network = self._network
        if network is None:
            raise AllReduceError("there is no switch now") if self._failure is None else again(self._failure)
        return network.engine

    def wake(self) -> None:
        """Have what is under way looked at again. For any thread."""
        network = self._network
        if network is not None:
            network.transport.wake()

    def runs_without_python(self) -> bool:
        """Return when what was submitted comes to its end without Python; False if that cannot be. To be called before
        a device is told to wait for it (`io.serve` has the reason). For any thread."""
        network = self._network
        return network is not None and network.transport.runs_without_python()

    def later(self, call: Callable[[], None]) -> None:
        """Have ``call`` called on a thread where callbacks are, after those of operations that are over. Raises
        RuntimeError once this is closed."""
        self._callbacks.submit(call)

    def count_invalid(self, codes: int) -> None:
        """A device has found so many codes that name no level. For any thread."""
        network = self._network
        with nullcontext() if network is None else network.transport.lock:  # what has ended counts nothing
            self._counters.invalid_codes += codes

    @property
    def failure(self) -> AllReduceError | None:
        """Why nothing more can be summed, if that is so."""
        return self._failure

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has done, brought up to date."""
        network = self._network
        if network is not None and os.getpid() == self._process:
            network.transport.update_counters()
        return self._counters

    def close(self, reason: str = "", end: bool = False) -> None:
        """Leave the job, or ``end`` it for all ranks. What is unfinished fails. No error if called twice; nothing
        happens in a process that was forked from the rank's."""
        if os.getpid() != self._process:
            return
        with Deferred():  # else the other ranks would wait for this one, which would not close a second time
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                self._failure = self._failure or AllReduceError(CLOSED_SUMMING)
                network, fallback = self._network, self._fallback
            atexit.unregister(self.close)
            if fallback is not None:
                fallback.close()
            if network is not None:
                for task in network.close(reason, end):
                    self._finish(task, self._failure)
        if not self._callbacks.shutdown(self.timeout_s):
            log.warning(
                "after %g s something that is called when sums are there, or waits for a device, is not over",
                self.timeout_s,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- called back ---

    def _finish(self, task: Task, failure: AllReduceError | None) -> None:
        self._counters.failed += failure is not None
        if failure is None and task.codec is not None:
            task.codec.finish()
        task.work.finish(task.target if failure is None else again(failure), self._callbacks)

    def _on_broken(self, network: Network, failure: AllReduceError) -> None:
        """A network has broken: end the job, so that the other ranks hear of it, and act by the policy."""
        reason = str(failure).removeprefix(over_text(self.config.job))  # the switch says who ended which job
        with self._lock:  # all the while, so that nothing is submitted to neither
            if self._closed or network is not self._network:
                return
            self._network = None
            if self.config.policy == "raise":
                self._failure = failure
            tasks = network.close(reason, end=True)
            if self.config.policy == "fallback":
                tasks = self._fall_back(network, tasks, failure)
        for task in tasks:
            self._finish(task, self._failure)

    def _fall_back(self, broken: Network | None, tasks: list[Task], why: AllReduceError) -> list[Task]:
        """Go on with the inner group, which does ``tasks`` first; those that nobody does."""
        assert self._inner is not None  # the constructor has asked

        def join(stop: threading.Event) -> Network:
            # Once a second, for as long as the switch stays away, which was said.
            return self._join(lambda: CLOSED_JOINING if stop.is_set() else None, logging.DEBUG)

        self._fallback = Fallback(self._inner, self.config, self._counters, join, self._on_back, self._finish)
        try:
            self._fallback.start(broken, tasks, why)
        except RuntimeError as error:  # there are no more threads
            self._fallback, self._failure = None, AllReduceError(f"{why}; nor can the inner group be used: {error}")
            return tasks
        return []

    def _on_back(self, network: Network, tasks: list[Task]) -> None:
        """All ranks are in the network again: it does what is left."""
        with self._lock:
            fallback, self._fallback = self._fallback, None
            tasks = [*tasks, *(fallback.drain() if fallback else [])]
            closed = self._closed
            if not closed:
                for task in tasks:
                    network.submit(task)
                self._use(network)
        if closed:
            network.close()
            for task in tasks:
                self._finish(task, self._failure)
