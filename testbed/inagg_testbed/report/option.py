"""The option --report of commands that measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from inagg.extras import require
from inagg_switch.cli.new_files import NewFile

F = TypeVar("F", bound=Callable[..., Any])


def drawable(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Say at once what would be missed after minutes of measuring: raises `MissingExtra`."""
    if path is not None:
        require("matplotlib")
    return path


def report_option(command: F) -> F:
    """Adds --report FILE; the command gets ``report``, a path or None."""
    return click.option(
        "--report", type=NewFile(replaces=True), callback=drawable,
        help="Write an HTML file with the table and pictures of it.",
    )(command)  # fmt: skip
