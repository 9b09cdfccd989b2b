"""Types of options that click does not have, for which what is wrong with a value is said before any work begins; and
options that many commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from inagg_switch.cli.sections import Number
from inagg_wire.formats import FORMATS

F = TypeVar("F", bound=Callable[..., Any])
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


def json_option(help: str = "One JSON object a line.") -> Callable[[F], F]:
    """``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=help)


format_option: Final = click.option(
    "--format", "format_", default="nat8", show_default=True, type=click.Choice(list(FORMATS))
)
"""``format_``: of one job."""


def formats_option(
    help: str = "Format of the numbers (repeatable).", default: Sequence[str] = ("nat8",)
) -> Callable[[F], F]:
    """``formats``: those that are measured."""
    return click.option(
        "--format", "formats", multiple=True, default=default, show_default=bool(default),
        type=click.Choice(list(FORMATS)), help=help,
    )  # fmt: skip


host_link_option: Final = click.option(
    "--link", default="1gbit", show_default=True, type=LinkRate(), metavar="RATE",
    help="Of each host to the switch (root).",
)  # fmt: skip
"""``link``: where hosts have one in any case."""
