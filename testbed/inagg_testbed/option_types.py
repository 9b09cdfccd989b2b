"""Types of options that click does not have: what is wrong with a value is said before any work begins."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number in a range: NaN is in none, and JSON has no infinity, nor has a measurement."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        if math.isinf(number):
            self.fail(f"{value} is not finite", param, ctx)
        return number


PROBABILITY = Number(0.0, 1.0)
POSITIVE, NOT_NEGATIVE = Number(min=0.0, min_open=True), Number(min=0.0)


class LinkRate(click.ParamType[str]):
    """A rate such as 1gbit, or none."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .topology import LinkSpec

        try:
            return str(LinkSpec.parse(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
