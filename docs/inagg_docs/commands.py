"""The reference of the commands: what `--help` says of each, at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from inagg.cli import COMMANDS, make_root

COLUMNS: Final = 80


def every_command() -> Iterator[tuple[str, click.Context]]:
    """Name (`inagg testbed up`) and context of each command, a group before what is in it."""
    yield from _below(make_root(COMMANDS), "inagg", None)


def _below(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, click.Context]]:
    settings = {"terminal_width": COLUMNS, "max_content_width": COLUMNS, **command.context_settings}
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent, **settings)
    yield name, context
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            if found is not None and not found.hidden:
                yield from _below(found, f"{name} {sub}", context)


def page() -> str:
    """The page, as Markdown."""
    lines = [
        "# Commands",
        "",
        "What `--help` says of each command. Exit status, unless a command says more: 0; 1 for an error; 2 for wrong",
        "usage or a missing extra; 130 after Ctrl-C, but 0 where it is the usual end (`inagg top`,",
        "`inagg why --watch`); 143 after SIGTERM.",
    ]
    for name, context in every_command():
        level = "##" if name.count(" ") < 2 else "###"
        lines += ["", f"{level} {name}", "", "~~~text", context.get_help(), "~~~"]
    return "\n".join(lines) + "\n"
