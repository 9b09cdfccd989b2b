"""Code in the pages: fenced blocks with the comment that says how they are tested, and commands named in the text.

A comment stands on the line above a block. Without one the block is run in the default tier.

    <!-- run: slow, root -->      run in these tiers of tests/conftest.py
    <!-- run by tests/x.py -->    that test runs it
    <!-- not run: why -->         nobody does; its commands and options must exist all the same
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from .tree import FENCE, ROOT, outside_of_code, pages


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block."""

    file: str
    """In the tree."""
    line: int
    language: str
    text: str
    comment: str
    """Without `<!--` and `-->`; empty if there is none."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def run(self) -> bool:
        return not self.comment or self.comment.startswith("run:")

    @property
    def tiers(self) -> tuple[str, ...]:
        """In which it is run; none: the default tier."""
        names = self.comment.removeprefix("run:") if self.comment.startswith("run:") else ""
        return tuple(name.strip() for name in names.split(",") if name.strip())

    @property
    def run_by(self) -> str | None:
        """The test that runs it."""
        return self.comment.removeprefix("run by ") if self.comment.startswith("run by ") else None

    @property
    def why_not(self) -> str | None:
        """Why nobody runs it."""
        return self.comment.removeprefix("not run: ") if self.comment.startswith("not run: ") else None


def texts() -> dict[str, str]:
    """File -> text of every page that is written by hand."""
    return {file: (ROOT / file).read_text() for file in pages().values()}


def blocks() -> list[Block]:
    """All blocks of all pages."""
    return [block for file, text in texts().items() for block in _blocks(file, text)]


def _blocks(file: str, text: str) -> Iterator[Block]:
    before, fence, language, comment, start = "", "", "", "", 0
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if fence:
            if match and match[2].startswith(fence):
                yield Block(file, start, language, "\n".join(inside) + "\n", comment)
                fence = ""
            else:
                inside.append(line)
        elif match:
            fence, language, start, inside = match[2], line[match.end() :].strip(), number, []
            found = re.fullmatch(r"<!-- (.*) -->", before)
            comment = found[1] if found else ""
        before = line


def spans(text: str) -> list[str]:
    """All `code` in the running text, also where it goes on in the next line."""
    kept: list[str] = []

    def keep(line: str) -> str:
        kept.append(line)
        return line

    outside_of_code(text, keep)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", "\n".join(kept))]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `inagg ...` in shell text, without `inagg`; also behind variables, sudo, and in pipes."""
    text = text.replace("\\\n", " ").replace('"$(command -v inagg)"', "inagg")
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words: list[str] | None = None
        for word in lexer:
            if set(word) <= set("|&;"):
                if words is not None:
                    yield words
                words = None
            elif words is not None:
                words.append(word)
            elif word.rpartition("/")[2] == "inagg":
                words = []
        if words is not None:
            yield words
