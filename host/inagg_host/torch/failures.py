"""Errors that ranks of this process were told of, in whichever process group: who leaves another one because of that
says so to its ranks, who may share no group with the rank that is gone.

A script that catches an error and then destroys its groups leaves all of them as if it had ended well. So a job asks,
as it is left, whether anything went wrong since its last sum.
"""

from __future__ import annotations

from inagg_host.errors import CLOSED, CLOSED_SUMMING


class _Told:
    """How many errors there were, and the last one."""

    count = 0
    last = ""


def note(error: BaseException) -> None:
    """Somebody is told of ``error``. For any thread."""
    if not is_own(error):
        _Told.last = f"{type(error).__name__}: {error}"
        _Told.count += 1


def is_own(error: BaseException) -> bool:
    """Whether it only says that this rank has left."""
    return str(error).startswith((CLOSED, CLOSED_SUMMING))


def mark() -> int:
    """The time now, for `since`."""
    return _Told.count


def since(then: int) -> str:
    """The last error after ``then``; empty if there was none."""
    return _Told.last if _Told.count > then else ""
