"""Keeping `torch.compile` out of our code. Dynamo traces whatever Python runs in a compiled frame, also what C++ calls
back from there: all that a `backward()` in a compiled training step sets off. It would fail on locks, clocks and
sockets, and say that the user's code is wrong.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

from torch._compile import _disable_dynamo

P = ParamSpec("P")
T = TypeVar("T")


def eager(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, which is not traced, nor is what it calls."""
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # The first call of what is disabled takes seconds, to import the compiler.
        return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


def eager_methods(cls: type[T]) -> type[T]:
    """The class ``cls``, of whose public methods none is traced."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(cls, name, eager(method))
    return cls
