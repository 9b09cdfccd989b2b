"""Ranges in the traces of torch.profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch.autograd import profiler
from torch.autograd.profiler import record_function
from torch.futures import Future

from inagg_host.io.phases import trace_with

T = TypeVar("T")

ALL_REDUCE = "inagg::all_reduce"
"""All-reduce of a DDP bucket, from the submission to the end, also while the submitting thread does other things."""
SUBMIT = "inagg::submit"
"""Handing a tensor to the network."""
WAIT = "inagg::wait"
"""A thread waits for sums."""


def recording() -> bool:
    """Whether there is a profiler; it need not record this thread."""
    return profiler._is_profiler_enabled


def span(name: str) -> AbstractContextManager[object]:
    """A range as long as the block; free of charge if nobody records."""
    return record_function(name) if recording() else nullcontext()


def traced(name: str, make: Callable[[], Future[T]]) -> Future[T]:
    """The future that ``make`` makes, with a range from now until it is done.

    Only for a future that is waited for while the same profiler records, as DDP waits for a bucket's before its
    backward pass ends. A range that ends when the next one records is written into memory of the one before, which is
    gone.
    """
    if not recording():
        return make()
    started = record_function(name)
    started.__enter__()  # type: ignore[no-untyped-call]
    return started._call_end_callbacks_on_future(make())  # which is done right after the range


# Where there is one, a range that takes a microsecond to begin and end, not seven: the loop shows many.
_quick: Callable[[str], AbstractContextManager[object]] = getattr(
    torch._C._profiler, "_RecordFunctionFast", record_function
)

# A profiler records threads that it was started on and, with `torch.profiler._ExperimentalConfig(
# profile_all_threads=True)`, all others: then the phases of the transport's thread are in the trace, too.
trace_with(lambda name: _quick(name) if recording() else None)
