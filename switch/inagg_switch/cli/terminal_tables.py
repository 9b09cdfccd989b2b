"""Tables for a terminal, or for what reads standard output instead of one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..text import printable

PIPED_COLUMNS: Final = 1_000_000
"""Width where there is no terminal: nothing is shortened for a reader that has no edge."""
NARROW: Final = "Too narrow for all columns (see --json)"
"""Note on a table that has no room for some columns."""
NAME_COLUMNS: Final = 17
"""Columns for a job's name on a terminal; a longer one takes more lines."""
GAP: Final = 2
"""Spaces between columns."""


def console() -> Console:
    """Standard output: as wide as the terminal, and without colours and edges where there is none."""
    terminal = sys.stdout.isatty()
    file = sys.stdout if terminal else cast("TextIO", _Trimmed(sys.stdout))
    return _PlainConsole(
        file=file, width=None if terminal else PIPED_COLUMNS, highlight=False, emoji=False, markup=False
    )


class _PlainConsole(Console):
    """One on which text is text, whoever wrote it: neither markup nor control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Called by rich for each string that is printed."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)


class _Trimmed:
    """A stream without the spaces with which tables fill their last column."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r" +(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def columns_that_fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, widths: Mapping[str, int] | None = None
) -> int:
    """Number of columns of a `table`, from the left, where the most important stand, that fit ``width`` uncut: one at
    least."""
    left = width
    for at, title in enumerate(columns):
        name = title.removeprefix(">")
        widest = max(map(cell_len, (name, *(printable(row[at]) for row in rows))))
        left -= min(widest, (widths or {}).get(name, widest)) + (GAP if at else 0)
        if left < 0:
            return max(1, at)
    return len(columns)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    fold: Sequence[str] = (),
    widths: Mapping[str, int] | None = None,
) -> Table:
    """A table without lines. A column whose title begins with ``>`` is of numbers, at the right; those titled as in
    ``fold`` take further lines where the terminal is too narrow, the others lose their ends. ``widths``: the most that
    a column takes on a terminal."""
    most = (widths or {}) if sys.stdout.isatty() else {}
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
    for title in columns:
        right, name = title.startswith(">"), title.removeprefix(">")
        folds = name in fold
        made.add_column(
            name,
            justify="right" if right else "left",
            overflow="fold" if folds else "ellipsis",
            no_wrap=not folds,
            max_width=most.get(name),
        )
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made
