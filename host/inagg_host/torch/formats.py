"""Number format of a process group's sums: the most exact one, unless a lossy one was asked for by name.

A hook sees gradients alone, which bear unbiased rounding. A process group sees whatever is summed: statistics of batch
normalization, activations of tensor parallelism, averaged parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from inagg_host.config import ConfigError
from inagg_wire.formats import job_format

EXACT = "fix32"
"""Each rank's values are rounded, without bias, by less than 2^-(29 - ceil(log2 n)) of the largest magnitude that any
of the n ranks has in their block; sums are exact. Float64, of which that would lose most, goes to the inner group."""


class _Blocks(threading.local):
    """Formats of the blocks of `exact` and `lossy` that a thread is in, the innermost last."""

    def __init__(self) -> None:
        self.formats: list[str] = []


_own = _Blocks()
_lock = threading.Lock()
_of_all: list[str] = []
"""Formats of the blocks of all threads, in the order in which they began."""


def in_force() -> str | None:
    """The format that a `with` block asks for; None outside of such blocks."""
    # Threads that Python did not start are those of backward passes, and belong to whoever began one.
    foreign = isinstance(threading.current_thread(), threading._DummyThread)
    formats = _own.formats or (_of_all if foreign else [])
    return formats[-1] if formats else None


@contextmanager
def _using(name: str) -> Iterator[None]:
    _own.formats.append(name)
    with _lock:
        _of_all.append(name)
    try:
        yield
    finally:
        _own.formats.pop()
        with _lock:  # the last of that name: blocks of two threads may end in any order
            del _of_all[len(_of_all) - 1 - _of_all[::-1].index(name)]


def exact() -> AbstractContextManager[None]:
    """A block in which process groups of the backend sum in the most exact way, whatever their format:

        with inagg_host.torch.exact():
            dist.all_reduce(statistics)

    It holds for this thread, and for the backward passes that PyTorch runs on threads of its own: all ranks must do the
    same. The first sum in a format that the group has not used yet begins a job of its own on the switch, and waits for
    all ranks. Hooks keep their format.
    """
    return _using(EXACT)


def lossy(name: str = "nat8") -> AbstractContextManager[None]:
    """Version of `exact` for a format of `inagg_wire.formats`. Raises `ConfigError` for `EXACT` and unknown names."""
    try:
        job_format(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if name == EXACT:
        raise ConfigError(f"{EXACT} is the exact format: use exact()")
    return _using(name)
