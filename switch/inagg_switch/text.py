"""Words that sentences for people are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

TEXT_CHARS_MAX: Final = 1000
"""Characters of an error: gRPC sends it in metadata, which are 8 KB at most, and a character of plain English is a byte
there."""


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 5``; ``no rank`` if there are none."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    if not runs:
        return "no rank"
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {words}" if runs[0][0] == runs[-1][1] else f"ranks {words}"


def seconds_text(seconds: float) -> str:
    """A duration with as many digits as one wants to read: ``0.42 s``, ``7.3 s``, ``128 s``."""
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"


def count_text(count: int, noun: str) -> str:
    """``1 slot``, ``5 slots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """``text`` of somebody else, which may do nothing to a terminal or a log: line ends and control characters are
    written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bounded(text: str) -> str:
    """`printable` text, no longer than `TEXT_CHARS_MAX`; what is not ASCII, which takes up to 12 bytes, is escaped
    too."""
    half = TEXT_CHARS_MAX // 2
    if len(text) > TEXT_CHARS_MAX:  # before the rest is looked at: whoever makes it long pays for little
        text = f"{text[:half]} ... {text[-half:]}"
    text = printable(text).encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:half]} ... {text[-half:]}"
