"""Click commands whose help lists the options in sections, where there are too many for one list."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


class Number(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions
    """A finite number from ``least`` (not included if ``above``) to ``most``."""

    name = "number"

    def __init__(self, least: float, most: float = math.inf, *, above: bool = False) -> None:
        self._least, self._most, self._above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Called by click."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not finite", param, ctx)
        if not self._least <= number <= self._most or (self._above and number == self._least):
            upper = f" and at most {self._most:g}" if self._most < math.inf else ""
            self.fail(f"{value} is not {'above' if self._above else 'at least'} {self._least:g}{upper}", param, ctx)
        return number


SECONDS = Number(0.0, above=True)
PROBABILITY = Number(0.0, 1.0)


class SectionedOption(click.Option):
    """An option that belongs to a section of the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


def in_section(section: str, *names: str, **kwargs: Any) -> Callable[[F], F]:
    """`click.option`, in a section."""
    return click.option(*names, cls=SectionedOption, section=section, **kwargs)


def file(section: str, name: str, help: str, **more: Any) -> Callable[[F], F]:
    """The option of a file that is there."""
    return in_section(section, name, type=FILE, metavar="FILE", help=help, **more)


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """These, in this order in the help."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class SectionedCommand(click.Command):
    """A command whose help has a list of options for each section, in the order in which they come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Called by click."""
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
