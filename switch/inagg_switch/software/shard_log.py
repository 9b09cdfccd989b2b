"""The log of a shard, which is the switch's: the same lines, on the same standard error."""

from __future__ import annotations

import logging


class _Awaiting(logging.Handler):
    """Makes the log what it should be when the first line of it comes. Most shards never have one, and to import what
    writes them takes a tenth of the time in which a shard starts."""

    def __init__(self, format_name: str, level: str) -> None:
        super().__init__()
        self._format_name, self._level = format_name, level

    def emit(self, record: logging.LogRecord) -> None:
        from .. import logs

        logs.configure(self._format_name, self._level)
        logging.getLogger().handle(record)


def configure(format_name: str, level: str) -> None:
    """Configure the log as `logs.configure` does, once there is a line for it."""
    root = logging.getLogger()
    root.handlers[:] = [_Awaiting(format_name, level)]
    root.setLevel(level.upper())
