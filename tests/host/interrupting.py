"""A signal whose handler raises, at every place of a sum where Python could call it, and what becomes of the sums."""

from __future__ import annotations

import dis
import itertools
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy as np
import pytest
from tests.link.signalling import NUMBER, Interrupted

from inagg_host.errors import AllReduceError

FILES = (
    "/inagg_host/allreduce.py", "/inagg_host/task.py", "/inagg_host/io/futures.py", "/inagg_host/membership/network.py",
    "/inagg_host/torch/",
)  # fmt: skip
"""Parts of the paths of files in whose functions a signal comes: not those of the transport, where how much is done on
this thread differs from call to call."""
SIGNALS = "/inagg_link/signals.py"
"""The same of the one that puts handlers off, which has many places."""

ENDS = 5
"""So many calls have fewer places than was asked for, one after the other, at the end: callbacks differ a little."""

AFTER = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})
AT = frozenset({"JUMP_BACKWARD"})
"""Instructions after and at which CPython looks whether a signal has come; and where a function begins."""

ELEMENTS = 300
Array = np.ndarray[Any, np.dtype[np.float32]]
Places = dict[str, set[str]]
"""Names of the functions that were interrupted, by what came of it."""


class Rank(Protocol):
    """One of two ranks. Both methods sum in place."""

    def begin(self, values: Array) -> object:
        """Sum, or begin to: what is to be interrupted."""

    def sum(self, values: Array) -> object:
        """Sum, and wait."""

    def turns(self) -> str:
        """How many have begun."""

    def close(self) -> object:
        """Leave, as after an error."""


def interrupt(place: int, call: Callable[[], object], files: Sequence[str] = FILES) -> str | None:
    """Call ``call``, in which a signal comes at the place of that number. The function that was interrupted; None:
    there are not so many. Its handler, or who put it off, is called there and then."""
    left, before = place, sys.gettrace()
    where: str | None = None

    def come(code: CodeType) -> None:
        nonlocal left, where
        left -= 1
        if left == -1:
            where = code.co_qualname
            sys.settrace(None)
            signal.raise_signal(NUMBER)

    def enter(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if where is not None or not any(part in code.co_filename for part in files):
            return None
        names = {instruction.offset: instruction.opname for instruction in _instructions(code)}
        frame.f_trace_opcodes, frame.f_trace_lines, last = True, False, ""

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal last
            if event == "opcode":
                behind, last = last, names.get(frame.f_lasti, "")
                if behind in AFTER or last in AT:
                    come(code)
            return trace

        if not code.co_flags & CO_GENERATOR:  # which goes on where it was, inside of what it is to put in order
            come(code)
        return trace

    sys.settrace(enter)
    try:
        call()
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
    return where


_known: dict[CodeType, list[dis.Instruction]] = {}


def _instructions(code: CodeType) -> list[dis.Instruction]:
    if code not in _known:
        _known[code] = list(dis.get_instructions(code))
    return _known[code]


def interrupt_everywhere(join: Callable[[int, int], Rank], files: Sequence[str] = FILES) -> Places:
    """Have two ranks sum, of which one is interrupted, catches that and goes on. What comes must be sums of arrays that
    belong together. ``join`` makes a rank, 0 or 1, of the job of a number. What came of it: "left out", if nothing was
    begun, and it is begun again; "came", the sum; "errors", on both ranks, and another job is made."""
    found: Places = defaultdict(set)
    place = 0
    with ThreadPoolExecutor(1) as pool:
        for job in itertools.count():
            other = pool.submit(join, 1, job)
            one = join(0, job)
            two = other.result()
            try:
                goes_on = _go_on(pool, one, two, place, found, files)
            finally:
                one.close()
                two.close()
            if goes_on is None:
                break
            place = goes_on
    return found


def _go_on(
    pool: ThreadPoolExecutor, one: Rank, two: Rank, place: int, found: Places, files: Sequence[str]
) -> int | None:
    """Interrupt at each place from ``place`` on, until there is an error; the next place."""
    ends = 0
    for number in itertools.count(step=2):
        mine, theirs = ([_values(2 * (number + i) + rank) for i in range(2)] for rank in range(2))
        both = pool.submit(lambda arrays: [two.sum(array) for array in arrays], theirs)
        before = one.turns()
        where = interrupt(place, partial(one.begin, mine[0]), files)
        came = "came" if one.turns() != before else "left out"
        try:
            if came == "left out":
                one.sum(mine[0])
            one.sum(mine[1])
        except AllReduceError:
            with pytest.raises(AllReduceError):
                both.result()
            assert where is not None
            found["errors"].add(where)
            return place + 1
        both.result()
        expected = [_values(4 * (number + i) + 1) for i in range(2)]
        np.testing.assert_array_equal([mine, theirs], [expected, expected])
        ends = ends + 1 if where is None else 0
        if ends == ENDS:
            return None
        if where is not None:
            found[came].add(where)
        place += 1
    raise AssertionError


def _values(value: int) -> Array:
    return np.full(ELEMENTS, value, np.float32)
