"""The callback of objects that are closed."""

from __future__ import annotations


def ignore(*_: object) -> None:
    """Do nothing, in the place of a callback that will not be called any more.

    An object that keeps a bound method of its owner is in a circle with it. Only the garbage collector frees such a
    circle, in a training perhaps never: with the rings of the job, and with the threads and sockets of its inner group.
    """
