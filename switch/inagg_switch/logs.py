"""Log lines: for people on a terminal, or one JSON object a line for machines. Always on standard error."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog


def configure(format_name: str = "human", level: str = "info", stream: TextIO | None = None) -> None:
    """Send what structlog and `logging` are told to ``stream`` (standard error), from ``level`` on.

    ``human``: a line of text, with colours on a terminal. ``json``: an object with ``timestamp`` (UTC, ISO 8601),
    ``level``, ``event`` and what belongs to the event; a traceback is one string, ``exception``.
    """
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(
            fmt="iso" if format_name == "json" else "%Y-%m-%d %H:%M:%S", utc=format_name == "json"
        ),
    ]
    last: list[Any]
    if format_name == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        no_padding = 0  # of events; by position, as its name is another since structlog 25.5
        renderer = structlog.dev.ConsoleRenderer(
            no_padding, colors=stream.isatty(), sort_keys=False, exception_formatter=structlog.dev.plain_traceback
        )
        last = [_readable, renderer]
    handler = logging.StreamHandler(stream)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, *last]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _readable(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A person needs neither to read what there is not, nor fifteen digits."""
    return {
        key: f"{value:.3g}" if isinstance(value, float) else value
        for key, value in event.items()
        if value not in (None, "")
    }
