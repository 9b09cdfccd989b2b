"""What the ranks that join a job tell each other beside the switch.

The switch knows which ranks have not come, but not why: who cannot reach it cannot tell it. Without a word all others
would wait for `Config.join_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from inagg_host.config import ConfigError
from inagg_host.errors import AllReduceError


class Word(Protocol):
    """A way between the ranks of one job that needs no switch."""

    def give(self, why: str) -> None:
        """Tell the others that this rank cannot join. Raises nothing."""

    def hear(self) -> str | None:
        """What another has told, a sentence; None: nothing."""


@contextmanager
def telling(word: Word | None) -> Iterator[Callable[[], str | None]]:
    """Around joining: gives what it is to ask while it waits, and tells the others if it fails, Ctrl-C included."""
    if word is None:
        yield lambda: None
        return
    try:
        yield word.hear
    except BaseException as error:
        if word.hear() is None:
            word.give(_why(error))
        raise


def _why(error: BaseException) -> str:
    """What the others are told of an error: as Python does it, but errors of ours are sentences."""
    name, text = type(error).__name__, str(error)
    return text if isinstance(error, AllReduceError | ConfigError) and text else f"{name}: {text}" if text else name
