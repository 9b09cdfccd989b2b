"""A channel, beside the switch, by which ranks that join a job tell each other that one of them cannot.

The switch knows which ranks have not come, but not why: who cannot reach it cannot tell it. Without a channel all
others would wait for `Config.join_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from inagg_host.config import ConfigError
from inagg_host.errors import AllReduceError


class JoinFailureChannel(Protocol):
    """A channel between the ranks of one job that needs no switch."""

    def publish(self, why: str) -> None:
        """Tell the others that this rank cannot join. Raises nothing."""

    def poll(self) -> str | None:
        """The sentence that another has published; None: there is none."""


@contextmanager
def publishing_failure(channel: JoinFailureChannel | None) -> Iterator[Callable[[], str | None]]:
    """A context around joining: gives what it is to ask while it waits, and publishes why it fails, Ctrl-C included."""
    if channel is None:
        yield lambda: None
        return
    try:
        yield channel.poll
    except BaseException as error:
        if channel.poll() is None:
            channel.publish(_why(error))
        raise


def _why(error: BaseException) -> str:
    """Text of an error for the others: as Python has it, but errors of ours are sentences."""
    name, text = type(error).__name__, str(error)
    return text if isinstance(error, AllReduceError | ConfigError) and text else f"{name}: {text}" if text else name
