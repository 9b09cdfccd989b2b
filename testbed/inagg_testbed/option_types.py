"""Types of options that click does not have: what is wrong with a value is said before any work begins."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click


class Number(click.FloatRange):
    """A number in a range; NaN, which is in none, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


PROBABILITY = Number(0.0, 1.0)
POSITIVE, NOT_NEGATIVE = Number(min=0.0, min_open=True), Number(min=0.0)


class NewFile(click.Path):
    """A file that can be written, in a folder that is there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        folder = Path(os.fsdecode(path)).absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            self.fail(f"{value}: there is no folder {folder} to write into", param, ctx)
        return path


class LinkRate(click.ParamType[str]):
    """A rate such as 1gbit, or none."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .topology import LinkSpec

        try:
            return str(LinkSpec.parse(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
