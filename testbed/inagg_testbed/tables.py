"""Tables for people, of which nothing is hidden: one that is too wide for the terminal becomes several, below one
another, each of which begins with the columns that say what a row is about.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH: Final = 160
"""Of tables that go to a file, where nobody says how wide it is (COLUMNS)."""
ENDLESS: Final = 1_000_000
"""Of its lines: what reads them line by line finds a row, or a sentence, in one."""


def console() -> Console:
    """Standard output."""
    found = Console(highlight=False)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(width=ENDLESS, highlight=False)


def print_table(
    out: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    keys: int = 1,
    left: Sequence[str] = (),
    caption: str | None = None,
) -> None:
    """Print ``rows``, which have a text for each of ``columns``. The first ``keys`` columns say what a row is about;
    those in ``left`` are at the left, others at the right. A column that is empty everywhere takes no room."""
    used = [at for at in range(len(columns)) if at < keys or any(row[at] for row in rows)]
    about, rest = used[:keys], used[keys:]
    parts: list[list[int]] = []
    while rest:
        part = [rest.pop(0)]
        while rest and _fits(out, _table("", columns, rows, [*about, *part, rest[0]], left)):
            part.append(rest.pop(0))
        parts.append(part)
    for number, part in enumerate(parts or [[]]):
        made = _table(title if not number else "", columns, rows, [*about, *part], left)
        if number == len(parts) - 1:
            made.caption, made.caption_justify = caption, "left" if caption and "\n" in caption else "center"
        out.print(made)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: Sequence[int], left: Sequence[str]
) -> Table:
    # An alone column may be wider than the terminal: then its text takes more lines.
    table = Table(title=title or None)
    for at in chosen:
        table.add_column(columns[at], justify="left" if columns[at] in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[at]) for at in chosen))
    return table


def _fits(out: Console, table: Table) -> bool:
    """Whether no cell has to be broken."""
    room = PIPED_WIDTH if out.width == ENDLESS else out.width
    return out.measure(table, options=out.options.update(width=ENDLESS)).maximum <= room
