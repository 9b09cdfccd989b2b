"""Click commands whose help lists the options in sections, where there are too many for one list."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])
NEAR: Final = 0.75
"""Likeness of an unknown option to one that there is, as difflib counts, from which on there is a hint; click's 0.6
takes in what nobody meant."""


class Number(click.FloatRange):
    """A finite number in a range: NaN is in none, and JSON has no infinity, nor has a measurement."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        if math.isinf(number):
            self.fail(f"{value} is not finite", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number in a range, which errors call an integer, as people do."""

    name = "integer"


SECONDS = Number(0.0, min_open=True)
PROBABILITY = Number(0.0, 1.0)


class SectionedOption(click.Option):
    """An option that belongs to a section of the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


def in_section(section: str, *names: str, **kwargs: Any) -> Callable[[F], F]:
    """`click.option`, in a section."""
    return click.option(*names, cls=SectionedOption, section=section, **kwargs)


def file(section: str, name: str, help: str, *, later: bool = False, **more: Any) -> Callable[[F], F]:
    """The option of a file that is there, or may come ``later``, so that not to find it is no wrong usage."""
    kind = click.Path(dir_okay=False, path_type=Path) if later else FILE
    return in_section(section, name, type=kind, metavar="FILE", help=help, **more)


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that adds these options, in this order in the help."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class SectionedCommand(click.Command):
    """A command whose help has a list of options for each section, in the order in which they come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, NEAR)
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            # What arguments are for is said in the text; some versions of click list them here too.
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                section = parameter.section if isinstance(parameter, SectionedOption) else "Options"
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)
