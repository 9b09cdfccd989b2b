"""Tables for people, of which nothing is hidden: one that is too wide for the terminal becomes several, below one
another, each of which begins with the columns that say what a row is about.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH: Final = 160
"""Width of tables that go to a file, where nobody says how wide it is (COLUMNS)."""
READABLE: Final = 80
"""Width of lines of text, at most."""
LONG: Final = 24
"""Width of a text: more may be broken over lines."""
FOLDED: Final = 16
"""A column of long texts is not narrower."""
PARTS_MAX: Final = 2
"""Tables whose first column is folded in each: more are harder to read than lines."""
ENDLESS: Final = 1_000_000
"""Width of a file's lines: what reads them line by line finds a row, or a sentence, in one."""


def console(stderr: bool = False) -> Console:
    """Standard output; or standard error."""
    found = Console(highlight=False, stderr=stderr)
    wide = found.is_terminal or "COLUMNS" in os.environ
    return found if wide else Console(width=ENDLESS, highlight=False, stderr=stderr)


def say(sentence: str, err: bool = False) -> None:
    """Print ``sentence`` for people: whole into a file, and in lines that can be read on a terminal."""
    out = console(err)
    out.print(Text(sentence), width=out.width if out.width == ENDLESS else READABLE)  # or less, as the terminal has


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
    those in ``left`` are at the left, others at the right. A column that is empty everywhere takes no room.

    Long texts take more lines, numbers do not. Where the first columns leave no room for another, each row becomes
    lines of a name and a value."""
    used = [at for at in range(len(columns)) if at < keys or any(row[at] for row in rows)]
    widths = {at: _widths(columns[at], [row[at] for row in rows], out.width != ENDLESS) for at in used}
    room = PIPED_WIDTH if out.width == ENDLESS else out.width
    about, rest = used[:keys], used[keys:]
    narrow = any(_least([*about, at], widths) > room for at in rest or [about[-1]])
    parts: list[list[int]] = []
    while rest:
        part = [rest.pop(0)]
        while rest and _least([*about, *part, rest[0]], widths) <= room:
            part.append(rest.pop(0))
        parts.append(part)
    folds = any(least < most for least, most in (widths[at] for at in about))
    if out.width != ENDLESS and (narrow or (folds and len(parts) > PARTS_MAX)):
        _print_lines(out, title, columns, rows, used, caption)
        return
    for number, part in enumerate(parts or [[]]):
        broken = _least([*about, *part], {at: (most, most) for at, (_, most) in widths.items()}) > room
        table = Table(title=title or None if not number else None, show_lines=broken and out.width != ENDLESS)
        for at in [*about, *part]:
            least, most = widths[at]
            side: Literal["left", "right"] = "left" if columns[at] in left else "right"
            table.add_column(columns[at], justify=side, overflow="fold", min_width=least, no_wrap=least == most)
        for row in rows:
            table.add_row(*(Text(row[at]) for at in [*about, *part]))
        if number == len(parts) - 1:
            table.caption, table.caption_justify = caption, "left" if caption and "\n" in caption else "center"
        out.print(table)


def _widths(name: str, cells: Sequence[str], fold: bool) -> tuple[int, int]:
    """Least and most width of a column; the same, unless it has long texts, which may ``fold``."""
    most = max(map(cell_len, [name, *cells]))
    if not fold or most <= LONG:
        return most, most
    words = [cell_len(word) for cell in cells for word in cell.split()]
    return min(most, max(cell_len(name), FOLDED, min(LONG, max(words)))), most


def _least(chosen: Sequence[int], widths: Mapping[int, tuple[int, int]]) -> int:
    """Width of a table of these columns, with its lines."""
    return 1 + sum(widths[at][0] + 3 for at in chosen)


def _print_lines(
    out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], used: Sequence[int],
    caption: str | None,
) -> None:  # fmt: skip
    blocks = ["\n".join(f"{columns[at]}: {row[at]}" for at in used if row[at]) for row in rows]
    for text in [*([title] if title else []), *blocks, *([caption] if caption else [])]:
        out.print(Text(text, overflow="fold"), end="\n\n")
