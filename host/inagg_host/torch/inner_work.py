"""Works of the inner group whose errors say who is gone."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from inagg_host.errors import AllReduceError
from inagg_host.gone import NAMED_S, wait_for_word

from . import failures
from .eager import eager, eager_methods
from .work import NO_TIMEOUT

if TYPE_CHECKING:
    from .jobs import GroupJobs

OF_CONNECTIONS = "gloo/transport"
"""Words that Gloo's errors have if a connection broke off, or brought nothing in time; not those of wrong arguments."""

PASSED_ON = ("_get_duration", "_get_op_type", "_get_sequence_number", "_source_rank", "source_rank", "synchronize")
"""Methods that are the inner work's, without anything to tell. Releases of torch differ."""


class Names:
    """Words of the switch on a group's ranks, for errors of its inner group."""

    def __init__(self, jobs: GroupJobs) -> None:
        self._jobs = weakref.ref(jobs)  # a work may be kept for longer than its group, whose connections end with it
        self._until_s: float | None = None

    def named(self, error: BaseException) -> AllReduceError | None:
        """The error to raise in place of ``error``: who is gone. None if it has another cause, or the switch knows of
        nobody who is gone. Waits for the switch's word for `NAMED_S` from the group's first error, not for each."""
        if OF_CONNECTIONS not in str(error):
            return None
        if self._until_s is None:
            self._until_s = time.monotonic() + NAMED_S
        failure = wait_for_word(self._failure, self._until_s, self._listening)
        if failure is not None and failures.is_own(failure):
            failure = None
        named = None if failure is None else AllReduceError(f"{failure}; the inner group says: {error}")
        failures.note(named or error)
        return named

    # Nothing here keeps the jobs while it waits: a group may be destroyed meanwhile.

    def _failure(self) -> AllReduceError | None:
        return None if (jobs := self._jobs()) is None else jobs.failure

    def _listening(self) -> bool:
        return (jobs := self._jobs()) is not None and jobs.listening


def on_cpu(arguments: tuple[Any, ...]) -> bool:
    """Whether the first tensor of an operation's ``arguments``, which may be in lists, is one of the CPU; False where
    there is none."""
    for argument in arguments:
        while isinstance(argument, list) and argument:
            argument = argument[0]
        if isinstance(argument, torch.Tensor):
            return argument.device.type == "cpu"
    return False


def begin(names: Names, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The work of an ``operation`` of Gloo, which may also have failed at once, or return none."""
    try:
        work = operation(*args, **kwargs)
    except RuntimeError as error:
        if (named := names.named(error)) is None:
            raise
        raise named from error
    return InnerWork(work, names, "allreduce" in operation.__name__) if isinstance(work, dist.Work) else work


@eager_methods
class InnerWork(dist.Work):
    """A work of Gloo. Nothing is different from it where nothing fails."""

    def __init__(self, work: dist.Work, names: Names, of_all_reduce: bool) -> None:
        super().__init__()
        self._work, self._names, self._of_all_reduce = work, names, of_all_reduce
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait as the work does. Raises `AllReduceError` if a rank is gone, else what the work raises."""
        try:
            return self._work.wait(timeout)
        except RuntimeError as error:
            if (named := self._names.named(error)) is None:
                raise
            raise named from error

    def get_future(self) -> Future[Any]:
        """The work's future, whose error is that of `wait`. But of an all-reduce it is Gloo's own, errors too: hooks of
        DDP that PyTorch has in C++ do not take the values of a future that was made in Python."""
        if self._of_all_reduce:
            return self._work.get_future()
        if self._future is None:
            names = self._names  # and not the work: its future keeps what is chained to it

            def value(done: Future[Any]) -> Any:
                try:
                    return done.value()
                except RuntimeError as error:
                    if (named := names.named(error)) is None:
                        raise
                    raise named from error

            self._future = self._work.get_future().then(value)
        return self._future

    def exception(self) -> Any:
        """Return the error of `wait`, if the work is over."""
        error: Any = self._work.exception()
        if error is None or (named := self._names.named(error)) is None:
            return error
        named.__cause__ = error
        return named

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether it went well."""
        return self._work.is_success()

    def result(self) -> list[torch.Tensor]:
        """The tensors of the result, as the work has them."""
        return self._work.result()

    def block_current_stream(self) -> None:
        """Make the current stream wait, as the work does."""
        self._work.block_current_stream()


def _pass_on(name: str) -> Callable[..., Any]:
    def method(self: InnerWork, *args: Any) -> Any:
        return getattr(self._work, name)(*args)

    method.__name__ = name
    return method


for _name in PASSED_ON:
    if hasattr(dist.Work, _name):
        setattr(InnerWork, _name, eager(_pass_on(_name)))
