"""Compressors by name and options, as a training script gives them: ``ef+natural+topk:k=0.01``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from .base import Compressor
from .compose import Composed
from .dithering import Dithering, NaturalDithering
from .feedback import ErrorFeedback
from .natural import Natural
from .sparse import BlockTopK, RandK, TopK, UltraSparse
from .terngrad import TernGrad

FEEDBACK = "ef"

_OURS = (Natural, NaturalDithering, Dithering, TernGrad, TopK, BlockTopK, RandK, UltraSparse)
_makers: dict[str, Callable[..., Compressor]] = {"qsgd": Dithering, **{ours.name: ours for ours in _OURS}}

_WORDS = {"inf": math.inf, "true": True, "false": False, "yes": True, "no": False, "none": None}


def register(name: str, make: Callable[..., Compressor]) -> None:
    """Let `parse` know a compressor of one's own. ``make`` gets the options as keyword arguments.

    Raises ValueError if the name is taken, or could not be written in a specification.
    """
    if name in _makers or name == FEEDBACK:
        raise ValueError(f"there is a compressor called {name!r}: choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"{name!r}: give small letters, digits and underscores")
    _makers[name] = make


def names() -> list[str]:
    """Names that `parse` knows."""
    return [FEEDBACK, *sorted(_makers)]


def parse(text: str) -> Compressor:
    """The compressor that ``text`` describes: names with options, the outermost first, joined by "+".

    ``topk:k=0.01`` is top-k, ``natural+topk:k=0.01`` natural compression of what top-k keeps, and
    ``ef+natural+topk:k=0.01`` error feedback around both. Options are ``name=value``, with commas between them: whole
    numbers, decimals, inf, true, false or words. Raises ValueError that says what there is.
    """
    parts = [_part(part) for part in text.split("+")]
    name, options = parts[-1]
    compressor = _make(name, options)
    for name, options in reversed(parts[:-1]):
        if name == FEEDBACK:
            compressor = _call(name, partial(ErrorFeedback, compressor), options)
        else:
            compressor = Composed(_make(name, options), compressor)
    return compressor


def _part(text: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = text.partition(":")
    options = {}
    for option in filter(None, (option.strip() for option in rest.split(","))):
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r} in {text!r}: options are name=value, with commas between them")
        key = key.strip()
        if key in options:
            raise ValueError(f"{key} is given twice in {text!r}")
        options[key] = _value(value.strip())
    return name.strip(), options


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _make(name: str, options: dict[str, Any]) -> Compressor:
    if name == FEEDBACK:
        raise ValueError(f"{FEEDBACK} is around another compressor: {FEEDBACK}+topk:k=0.01, for example")
    if name not in _makers:
        raise ValueError(f"no compressor is called {name!r}: there are {', '.join(names())}")
    return _call(name, _makers[name], options)


def _call(name: str, make: Callable[..., Compressor], options: dict[str, Any]) -> Compressor:
    try:
        signature(make).bind(**options)
    except TypeError:
        wrong = f"does not take {options}" if options else "cannot do without options"
        raise ValueError(f"{name} {wrong}: it takes {_takes(name)}") from None
    return make(**options)


def _takes(name: str) -> str:
    if name == FEEDBACK:
        return "damping"
    options = signature(_makers[name]).parameters.values()
    takes = [option.name + (" (needed)" if option.default is option.empty else "") for option in options]
    return ", ".join(takes) or "no options"
