"""Facts in a line of results on how it was measured, so that it can be read, and repeated, a year later."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from .cache import machine

OF_OUTPUT: Final = {"as_json", "report", "out", "record", "web", "trace_dir"}
"""Options that change where results go, and not what they are."""


def setup() -> dict[str, Any]:
    """Version, machine and Unix time; and the options of the command that runs, if one does: given and default ones, by
    the names that they have there."""
    context = click.get_current_context(silent=True)
    options = {} if context is None else {k: v for k, v in context.params.items() if k not in OF_OUTPUT}
    readable = {key: json.loads(json.dumps(value, default=_text)) for key, value in options.items()}
    return {"setup": machine() | {"time_s": round(time.time(), 3), "options": readable}}


def _text(value: object) -> str:
    """Text of what JSON has no name for: a path is told whole, wherever the results are read."""
    return str(value.absolute()) if isinstance(value, Path) else str(value)
