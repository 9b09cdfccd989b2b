"""What people read fits their terminal, and is whole in a file."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from inagg.cli import COMMANDS, make_root
from inagg.lazy_group import LazyGroup
from inagg_testbed import progress
from inagg_testbed.progress import Steps
from inagg_testbed.tables import say

SENTENCE = "A sentence of many words, " * 10


def commands_of(group: click.Group, context: click.Context) -> list[list[str]]:
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += [[name, *rest] for rest in (commands_of(command, context) if isinstance(command, LazyGroup) else [[]])]
    return found


def test_every_help_fits_80_columns() -> None:
    """A list of choices in brackets cannot be broken."""
    root = make_root(COMMANDS)
    wide = []
    for words in commands_of(root, click.Context(root)):
        shown = CliRunner().invoke(root, [*words, "--help"], terminal_width=80).stdout
        wide += [f"{' '.join(words)}: {line}" for line in shown.splitlines() if len(line) > 80]
    assert wide == []


@pytest.mark.parametrize(("columns", "most"), [("40", 40), ("200", 80)])
def test_sentences_are_broken_where_the_terminal_ends(
    columns: str, most: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    say(SENTENCE)
    lines = capsys.readouterr().out.splitlines()
    assert most - 15 < max(map(len, lines)) <= most


def test_a_sentence_in_a_file_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    say(SENTENCE, err=True)
    assert capsys.readouterr().err == f"{SENTENCE}\n"


@pytest.mark.parametrize(("width", "columns"), [(40, 3), (80, 5)])
def test_on_a_narrow_terminal_words_have_the_room_of_bars(
    width: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "Console", lambda **how: Console(**how, force_terminal=True, width=width))
    with Steps() as steps:
        assert steps.bars is not None
        assert len(steps.bars.columns) == columns
