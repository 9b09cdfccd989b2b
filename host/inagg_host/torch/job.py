"""The job that one process group has on the switch: which tensors it carries, and the sums."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ReduceOp

from inagg_host.config import TIME_MAX_S, ConfigError
from inagg_host.errors import CLOSED, AllReduceError
from inagg_host.nickname import nickname
from inagg_host.stats import Counters
from inagg_link.signals import Deferred
from inagg_wire.names import NAME_CHARS_MAX, shortened

from . import failures
from .cuda import FLOAT_TYPES
from .failure_channel import StoreFailureChannel
from .formats import EXACT
from .hosts import HostAllReduce
from .inner import ArrayGroup, make_inner
from .options import DEFAULT_FORMAT, Settings, resolve_options
from .tensors import DEVICES, TensorAllReduce, check, has_no_memory
from .work import TensorWork, failed

ONLY_LABELS = ("world", "ddp")
"""Labels of groups that a process has one of."""

NO_ROOM = "no room for job"
"""Part of the switch's refusal where other jobs have its slots."""

PLACE_CHARS_MAX = len(".999")
"""Most characters that are added for the jobs of a host's ranks."""

LABEL_CHARS = 20
"""So much of a long name of a group stays, however long that of the job is."""


class GroupJob:
    """One process group's job. It is joined by `join`, or by the first tensor that needs it."""

    def __init__(
        self, given: dict[str, Any], rank: int, workers: int, timeout: timedelta, label: str,
        gather: Callable[[bytes], list[bytes]], store: Store,
        default_format: str = DEFAULT_FORMAT, alike: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``label`` names the group for people. ``gather``, which all ranks call at once, returns what each rank gave
        to it. By ``store`` ranks find each other for further groups; keys have the jobs' names, which are unique. All
        ranks must make this at once. ``alike``: what else must be the same on all ranks, by name, for JSON. Raises
        `ConfigError`, on all ranks if on one."""

        def resolve() -> Settings:
            return resolve_options(given, rank, workers, timeout, default_format)

        self.settings = _resolve_alike(resolve, gather if workers > 1 else None, alike or {})
        self.workers, self.rank = workers, rank
        self.inner: Counter[str] = Counter()
        """Operations that went to the inner group, by reason."""
        self._label, self._gather, self._store = label, gather, store
        self._timeout = timeout
        self._joining = threading.Lock()
        """Held while it is joined, which may take long. `close` and `abort` do not wait for it."""
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._sums: TensorAllReduce | HostAllReduce | None = None
        self._spare: ArrayGroup | None = None
        self._closed = False
        self._failed = ""
        """Error of this rank, if it was closed because of one."""
        self._last_sum = failures.mark()
        self._calls = itertools.count()
        """Sums so far. One that was interrupted before it began counts on this rank as on the others, so that the next
        is an error on all, in place of sums of different tensors."""
        self._said = False  # the summary

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long sums may take, from now on: no longer than the option says, if there was one."""
        with self._lock:
            self._timeout, sums = timeout, self._sums
        if sums is not None:
            sums.set_timeout(self._limit())

    def _limit(self) -> timedelta:
        return min(self._timeout, timedelta(seconds=min(self.settings.timeout_s, TIME_MAX_S)))

    # --- what goes where ---

    def divisor(self, op: Any) -> int | None:
        """Return the divisor of sums for ``op``; None if the switch does not do it."""
        # The option on the left: ReduceOp compares with its own enumeration, the enumeration with nothing else.
        if op == ReduceOp.SUM:
            return 1
        return self.workers if op == ReduceOp.AVG else None

    def why_not(self, tensor: torch.Tensor, op: Any) -> str | None:
        """Why ``tensor`` cannot be summed by the switch, or should not; None if it is to be. Equal on all ranks."""
        if self.workers == 1:
            return "one-rank"
        if self.workers == self.settings.local_size:
            return "one-host"
        if self.divisor(op) is None:
            return f"op-{_name(op)}"
        if tensor.layout is not torch.strided:
            return "sparse"
        if has_no_memory(tensor):
            return "no-memory"
        if tensor.dtype not in FLOAT_TYPES:
            return str(tensor.dtype).replace("torch.", "dtype-")
        if tensor.device.type not in DEVICES:
            return f"device-{tensor.device.type}"
        if tensor.device.type == "cuda" and torch.version.hip:  # an AMD GPU: it has no driver of CUDA's
            return "device-rocm"
        if tensor.dtype is torch.float64 and self.settings.config.format == EXACT:
            return "exact-float64"
        # An empty tensor is below any threshold.
        return "small" if tensor.nbytes < max(self.settings.min_bytes, 1) else None

    def check(self, tensor: torch.Tensor, out: torch.Tensor | None = None, scatter: bool = False) -> None:
        """Raise what `sum` would, of a tensor of which `why_not` has said None."""
        check(tensor, tensor if out is None else out, self.workers if scatter else 1)

    def sum(
        self,
        tensor: torch.Tensor,
        op: Any = ReduceOp.SUM,
        out: torch.Tensor | None = None,
        number: int = 0,
        wait: bool = False,
        contributed: torch.Tensor | None = None,
        scatter: bool = False,
    ) -> TensorWork:
        """Sum or average, into ``out`` or in place; `why_not` has said None. The work raises `AllReduceError` if that
        cannot be. ``number``: what tells it from others of the same shape, the same on all ranks. ``wait``: the caller
        will. ``contributed``: as of `TensorAllReduce.submit`, where hosts have one rank. ``scatter``: ``tensor`` is an
        equal part for each rank, and ``out`` gets this rank's; see `AllReduce.submit`. Raises ValueError as `check`."""
        call = next(self._calls)  # before anything that may fail, or be interrupted
        self._last_sum = failures.mark()
        try:
            sums = self.join()
        except AllReduceError as error:
            return failed(error)
        return self._submit(sums, tensor, op, out, f"{call} {number}", wait, contributed, scatter)

    def sum_all(
        self, tensors: Sequence[torch.Tensor], op: Any, outs: Sequence[torch.Tensor], scatter: bool = False
    ) -> list[TensorWork]:
        """Sum several as `sum` does one: all, or none if a handler of a signal raises before the first."""
        call = next(self._calls)
        self._last_sum = failures.mark()
        try:
            sums = self.join()
        except AllReduceError as error:
            return [failed(error) for _ in tensors]
        on_host = all(tensor.device.type == "cpu" for tensor in tensors)
        with Deferred() if on_host else nullcontext():  # as room on a device may be waited for
            return [
                self._submit(sums, tensor, op, out, f"{call} {i}", scatter=scatter)
                for i, (tensor, out) in enumerate(zip(tensors, outs, strict=True))
            ]

    def _submit(
        self, sums: TensorAllReduce | HostAllReduce, tensor: torch.Tensor, op: Any, out: torch.Tensor | None,
        which: str, wait: bool = False, contributed: torch.Tensor | None = None, scatter: bool = False,
    ) -> TensorWork:  # fmt: skip
        """Have ``sums`` sum it; ``which``: what tells it from others of the same shape."""
        divisor = self.divisor(op) or 1
        tag = zlib.crc32(f"{tuple(tensor.shape)} {which} {divisor}".encode())
        # Sums are soon beyond 65504 where their mean is not: divided first, as DDP and NCCL do it.
        first = divisor > 1 and tensor.dtype is torch.float16
        try:
            return sums.submit(
                tensor, out, divisor, tag=tag, wait=wait, contributed=contributed, scatter=scatter, divide_first=first
            )
        except AllReduceError as error:
            return failed(error)

    # --- the job ---

    def join(self) -> TensorAllReduce | HostAllReduce:
        """Join if that has not happened; waits for all ranks. Raises `AllReduceError` if it cannot, or if this is
        closed or aborted meanwhile."""
        with self._joining:
            if self._sums is not None:
                return self._sums
            if self._closed:
                raise AllReduceError(CLOSED)
            try:
                # Two trainings may have groups of one name, and so may one that was started again: hence a nickname.
                name = self._gather(_job_name(self.settings.config.job, self._label).encode())[0].decode()
                sums, spare = self._join(name)
            except Exception as error:
                if (why := self._why_closed()) is None:
                    if NO_ROOM in str(error) and self._label not in ONLY_LABELS:
                        hint = 'groups that need no switch take no slots as new_group(backend="gloo")'
                        raise AllReduceError(f"{error}. Also, {hint}") from error
                    raise
                raise AllReduceError(f"rank {self.rank} cannot join: {why}") from error
            with self._lock:
                if (why := self._why_closed()) is None:
                    sums.arrays.timeout_s = self._limit().total_seconds()  # it may have been set meanwhile
                    self._sums, self._spare = sums, spare
                    atexit.register(self._abandon)
                    return sums
            self._leave(sums, spare, drain=not self._failed)
            raise AllReduceError(f"rank {self.rank} cannot join: {why}")

    def _join(self, name: str) -> tuple[TensorAllReduce | HostAllReduce, ArrayGroup | None]:
        """Join the job of that name, or, where hosts have several ranks, that of this rank's place on its host. Also
        what it falls back to."""
        config, local_size = self.settings.config, self.settings.local_size
        place = self.rank % local_size
        job = name if local_size == 1 else f"{name}.{place}"
        with ExitStack() as made:
            spare = None
            if config.policy == "fallback":
                store = PrefixStore(f"{job}/", self._store)
                spare = ArrayGroup(store, config.rank, config.workers, self._timeout)
                made.callback(spare.close)
            inside = []
            # Before it joins: a rank of this host that cannot join would not come to make them.
            for what in ("scatter", "gather") if local_size > 1 else ():
                store = PrefixStore(f"{name}/host{config.rank}/{what}/", self._store)
                inside.append(make_inner(store, place, local_size, self._timeout))
                made.callback(inside[-1].shutdown)
            failure_channel = StoreFailureChannel(PrefixStore(f"{name}/", self._store), self.rank, self._why_closed)
            sums = TensorAllReduce(inner=spare, failure_channel=failure_channel, **{**asdict(config), "job": job})
            made.pop_all()
        return HostAllReduce(sums, *inside) if inside else sums, spare

    def _why_closed(self) -> str | None:
        """Why it cannot be joined any more, if that is so."""
        return (self._failed or "its job was closed") if self._closed else None

    @property
    def failure(self) -> AllReduceError | None:
        """Why nothing more can be summed, if that is so."""
        return None if self._sums is None else self._sums.failure

    @property
    def listening(self) -> bool:
        """Whether the switch would tell if a rank is gone, and `failure` then says so."""
        return self._sums is not None and not self._closed and self.settings.config.policy == "raise"

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has done in this group, brought up to date."""
        counters = Counters() if self._sums is None else self._sums.counters
        return replace(counters, inner={**counters.inner, **self.inner})

    @property
    def closed(self) -> bool:
        """Whether it was left, or ended."""
        return self._closed

    def close(self) -> None:
        """Leave the job. What is unfinished fails. No error if called twice.

        While an exception is being handled, end the job for all ranks: they should not wait for this one. But not where
        a script ends well, by `sys.exit()`.
        """
        error = sys.exception()
        self._close(None if isinstance(error, SystemExit) and error.code in (None, 0) else error)

    def abort(self) -> None:
        """End the job for all ranks. No error if called twice."""
        self._close(RuntimeError("its process group was aborted"))

    def _abandon(self) -> None:
        """The process ends, and nobody has destroyed the group."""
        # An error is what the interpreter printed last. If a script just ends, others may still fetch their sums.
        self._close(getattr(sys, "last_value", None))

    def _close(self, error: BaseException | None) -> None:
        if os.getpid() != self._process:  # forked: it is the other process that is a rank
            return
        with Deferred(), self._lock:
            first = not self._closed
            if first:
                # A script may have caught an error of another group, which is why it leaves this one.
                self._failed = failures.since(self._last_sum) if error is None else f"{type(error).__name__}: {error}"
            self._closed, sums = True, self._sums  # if it is being joined, who does that leaves it
        if sums is not None:  # also if a call before this one was interrupted
            self._leave(sums, self._spare, drain=first and error is None)
        atexit.unregister(self._abandon)
        with self._lock:
            said, self._said = self._said, True
        if self.settings.summary and not said:
            job = "no job" if sums is None else f"job {sums.arrays.config.job}"
            text = f"inagg: rank {self.rank} of {self.workers}, {job}\n{self.counters.summary()}"
            print(text.replace("\n", "\n  "), file=sys.stderr, flush=True)

    def _leave(self, sums: TensorAllReduce | HostAllReduce, spare: ArrayGroup | None, drain: bool) -> None:
        reason = f"rank {self.rank} has failed: {self._failed}" if self._failed else ""
        try:
            if drain:
                sums.drain()
        finally:
            sums.close(reason, end=bool(reason))
        if spare is not None:
            spare.close()


def _job_name(base: str, label: str) -> str:
    """A name that no other job has; what people need to recognise it comes first. The group is named where there may
    be several. What is too long of either is shortened."""
    nick, room = nickname(), NAME_CHARS_MAX - PLACE_CHARS_MAX
    place = "" if label in ONLY_LABELS else "/" + label
    name = f"{shortened(base, room - len(nick) - 1 - min(len(place), LABEL_CHARS))}-{nick}"
    return re.sub(r"[^A-Za-z0-9._:/-]", "_", name + shortened(place, room - len(name)))


def _name(op: Any) -> str:
    """The name of a `ReduceOp`, which may be a bare one of its enumeration."""
    return next((name.lower() for name, known in ReduceOp.RedOpType.__members__.items() if op == known), "unknown")


def _resolve_alike(
    resolve: Callable[[], Settings], gather: Callable[[bytes], list[bytes]] | None, alike: Mapping[str, Any]
) -> Settings:
    """Return what ``resolve`` gives, if that is alike on all ranks where it must be: which tensors go through the
    switch, and how; and if so is what is given as ``alike``. Else, and if it fails on one, all of them get a
    `ConfigError`: none is left to wait for others."""
    settings: Settings | None = None
    error: Exception | None = None
    try:
        settings = resolve()
        said = json.dumps(settings.common | {**alike})
    except Exception as wrong:  # whatever it is, as the others wait to hear of it
        said, error = json.dumps({"error": str(wrong) or type(wrong).__name__}), wrong
    everyone = [json.loads(text) for text in ([said] if gather is None else gather(said.encode()))]
    if error is not None or settings is None:
        raise error or AssertionError
    for rank, of_rank in enumerate(everyone):
        if "error" in of_rank:
            raise ConfigError(f"rank {rank}: {of_rank['error']}")
        for name, value in of_rank.items():
            if value != everyone[0][name]:
                raise ConfigError(
                    f"rank {rank} has {name} {value!r} and rank 0 {everyone[0][name]!r}: give all ranks the same"
                )
    return settings
