"""A compressor around another one: what both share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from .base import Compressor

P = ParamSpec("P")
T = TypeVar("T")


def left_to(part: str, method: Callable[P, T]) -> Callable[P, T]:
    """``method`` of `Compressor`, as it is of the compressor that is this one's ``part``."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(getattr(self, part), method.__name__)(*args, **options)

    call.__name__, call.__doc__ = method.__name__, f"The {part}'s."
    return call  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Around(Compressor):
    """Does everything as ``inner`` does it, but for the state. A derived class overrides what it does itself."""

    inner: Compressor

    aggregation = property(lambda self: self.inner.aggregation)
    formats = property(lambda self: self.inner.formats)
    bound = left_to("inner", Compressor.bound)
    remark = left_to("inner", Compressor.remark)
    compress = left_to("inner", Compressor.compress)  # it is the caller who has called `enter`
    decompress = left_to("inner", Compressor.decompress)
    blocks = left_to("inner", Compressor.blocks)
    where = left_to("inner", Compressor.where)
    kept = left_to("inner", Compressor.kept)
    spread = left_to("inner", Compressor.spread)
    scale = left_to("inner", Compressor.scale)
    to_sum = left_to("inner", Compressor.to_sum)
    from_sum = left_to("inner", Compressor.from_sum)
