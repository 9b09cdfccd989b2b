"""Outages of a switch or its data planes, for a command that asks again and again: it says so once, and goes on."""

from __future__ import annotations

import time
from typing import Final

import click

from ..service.control_client import ControlCallError

RETURN_S: Final = 60.0
"""Seconds that a job may take to come back to a switch that is back: its ranks try for INAGG_RECONNECT, which is 30
s."""


class Outage:
    """The time from the first question that was not answered to the next that is."""

    def __init__(self) -> None:
        self._told: ControlCallError | None = None
        self._back_s: float | None = None  # when the switch first answered again, though with an error

    def missed(self, error: ControlCallError, *, quiet: bool = False) -> None:
        """A question has failed: say so on standard error, once, unless ``quiet``. Raises ``error`` if asking again
        does not help, as where a job is over."""
        if error.silent or error.broken:  # a shard that hangs, or has died, is started again
            self._back_s = None
        elif self._told is None:
            raise error
        else:
            now_s = time.monotonic()
            self._back_s = now_s if self._back_s is None else self._back_s
            if now_s > self._back_s + RETURN_S:
                raise error
        if not quiet and (self._told is None or error.silent != self._told.silent):
            click.echo(f"{error}; asking again until that is over", err=True)
        self._told = error

    def over(self) -> None:
        """A question was answered."""
        self._told = self._back_s = None
