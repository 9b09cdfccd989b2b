"""Types of options that click does not have, for which what is wrong with a value is said before any work begins; and
options that many commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from inagg_switch.cli.sections import Number, Whole
from inagg_wire.formats import FORMATS

F = TypeVar("F", bound=Callable[..., Any])
FORMAT_NAMES: Final = ", ".join(FORMATS)
POSITIVE, NOT_NEGATIVE = Number(min=0.0, min_open=True), Number(min=0.0)


if TYPE_CHECKING:
    OptionType = click.ParamType[Any]
else:
    OptionType = click.ParamType  # which click before 8.4 cannot subscript
"""The base of types of options."""


class LinkRate(OptionType):
    """A rate such as 1gbit, or none."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .topology import LinkSpec

        try:
            return str(LinkSpec.parse(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def json_option(help: str = "One JSON object a line.") -> Callable[[F], F]:
    """``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


format_option: Final = click.option(
    "--format", "format_", default="nat8", show_default=True, type=click.Choice(list(FORMATS)), metavar="NAME",
    help=f"Format of the numbers: {FORMAT_NAMES}.",
)  # fmt: skip
"""``format_``: of one job."""


def seconds_option(default: float, least: Number = POSITIVE) -> Callable[[F], F]:
    """``seconds``: how long something is measured by the clock."""
    return click.option(
        "--seconds", default=default, show_default=True, type=least,
        help="Time to measure each row of the table, roughly.",
    )  # fmt: skip


def runs_option(default: int) -> Callable[[F], F]:
    """``runs``: how often something is measured."""
    return click.option(
        "--runs", default=default, show_default=True, type=Whole(1),
        help="Runs of each row of the table; the median counts.",
    )  # fmt: skip


def seeds_option(default: str, most: int | None = None) -> Callable[[F], F]:
    """``seeds``: how many, None if it is not given. ``default``: what that means, in words."""
    return click.option(
        "--seeds", type=Whole(1, most), metavar="N",
        help=f"Train N times, each from another seed; means are shown.  [default: {default}]",
    )  # fmt: skip


def formats_option(
    help: str = "Format of the numbers (repeatable)", default: Sequence[str] = ("nat8",)
) -> Callable[[F], F]:
    """``formats``: those that are measured."""
    return click.option(
        "--format", "formats", multiple=True, default=default, show_default=bool(default),
        type=click.Choice(list(FORMATS)), metavar="NAME", help=f"{help}: {FORMAT_NAMES}.",
    )  # fmt: skip


host_link_option: Final = click.option(
    "--link", default="1gbit", show_default=True, type=LinkRate(), metavar="RATE",
    help="Of each host to the switch (root).",
)  # fmt: skip
"""``link``: where hosts have one in any case."""
