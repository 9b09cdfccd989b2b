"""Groups of commands that know their subcommands by name, and import only the one that runs."""

from __future__ import annotations

import difflib
import importlib
import itertools
import shlex
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from .working_folder import require_working_folder


class Entry(NamedTuple):
    """A subcommand: where it is (`module:attribute`) and its line in `inagg --help`. ``anywhere``: it, or some of its
    own subcommands, which then look for themselves, can do without a working directory."""

    target: str
    help: str
    anywhere: bool = False


TYPED: Final = "inagg.typed"
"""In click's `Context.meta`: the words after `inagg`."""


def typed() -> str | None:
    """The command that runs, as it was typed; None outside of one."""
    context = click.get_current_context(silent=True)
    words = None if context is None else context.meta.get(TYPED)
    return None if words is None else shlex.join(["inagg", *words])


def need_working_folder(ctx: click.Context) -> None:
    """Require a working folder in the callback of a group, whose subcommand needs one. Raises `NoWorkingFolder`, but
    not for who asks for help only."""
    words = itertools.takewhile(lambda word: word != "--", ctx.meta.get(TYPED, ()))
    if not set(ctx.help_option_names).intersection(words):
        require_working_folder()


class LazyGroup(click.Group):
    """A click group whose subcommands are entries of a table, imported when they are called."""

    def __init__(self, *, entries: dict[str, Entry], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.entries = entries

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Called by click; keeps what was typed, for reports."""
        if ctx.parent is None:
            ctx.meta[TYPED] = list(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a subcommand; None if there is none of this name.

        Raises ModuleNotFoundError if something that the subcommand needs is not installed, and TypeError if
        the table names something that is not a click command.
        """
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.target} is not a click command but {type(command).__name__}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Called by click."""
        name = args[0]
        if name not in self.entries and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{did_you_mean(name, self.entries)}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Called by click, which would import every subcommand to read its help."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = ((name, entry) for name, entry in self.entries.items() if name.startswith(incomplete))
        return [CompletionItem(name, help=entry.help) for name, entry in names] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every subcommand to read its help
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to append, if ``word`` is nearly one of those that are ``known``; else nothing."""
    near = difflib.get_close_matches(word, list(known), 1) or [name for name in known if name.startswith(word)][:1]
    return f" Did you mean {near[0]!r}?" if near else ""
