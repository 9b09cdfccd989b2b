"""Files of the tree as pages of the site, and links between them.

A link is written as the tree needs it, relative to the file that it stands in, so that it works where the tree is read
(an editor, a Git host). For the site it is rewritten: to the page that the file is, or else to one that shows it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

PAGES: Final = {
    "index.md": "README.md",
    "deploy.md": "deploy/README.md",
    "p4.md": "p4/README.md",
    "p4-fit.md": "p4/tofino/FIT.md",
    "compressors.md": "host/inagg_host/compress/README.md",
    "protocol.md": "protos/README.md",
    "vectors.md": "tests/vectors/README.md",
    "results.md": "testbed/results/README.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages that stand beside what they describe: page of the site -> file. All others stand in docs/ under their name."""

SHOWN: Final = "files"
"""Where the site shows files of the tree that are no pages."""

PICTURES: Final = (".png", ".svg")
LINK: Final = re.compile(r"(?<!`)(\[(?:[^\[\]`]|`[^`]*`)*\])\(([^()\s]+)\)")
FENCE: Final = re.compile(r"^( *)(```+|~~~+)")


class BrokenLink(ValueError):
    """A link leads to nothing in the tree."""


def pages() -> dict[str, str]:
    """Page of the site -> file of the tree, of all that are written by hand."""
    own = {str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    return {page: str(path.relative_to(ROOT)) for page, path in own.items()} | PAGES


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """``text`` with each line changed that stands in no fenced or indented code block."""
    fence, lines, blank_before = "", [], True
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence:
            fence = "" if match and match[2].startswith(fence) else fence
        elif match:
            fence = match[2]
        elif not (line.startswith("    ") and blank_before):
            line = change(line)
        blank_before = not line.strip() or (blank_before and line.startswith("    "))
        lines.append(line)
    return "\n".join(lines)


def links(text: str) -> list[str]:
    """The targets of all links and pictures in a Markdown text, in order."""
    found: list[str] = []

    def collect(line: str) -> str:
        found.extend(match[2] for match in LINK.finditer(line))
        return line

    outside_of_code(text, collect)
    return found


def target(file: str, link: str) -> tuple[str, str] | None:
    """The file (or folder) of the tree that a link in ``file`` leads to, and the anchor; None if it leads elsewhere.

    Raises `BrokenLink`.
    """
    if re.match(r"[a-z]+:", link):
        return None
    path, _, anchor = link.partition("#")
    if not path:
        return file, anchor
    found = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
    if found.startswith("..") or not (ROOT / found).exists():
        raise BrokenLink(f"{file}: nothing is at {link}")
    return found, anchor


def shown_at(path: str) -> str:
    """The page that shows a file of the tree that is no page itself."""
    return f"{SHOWN}/{path}.md"


def for_the_site(page: str, file: str, text: str, generated: dict[str, str], show: Callable[[str], None]) -> str:
    """The text of ``file`` as ``page`` of the site.

    ``generated`` maps files to pages that are made from them; ``show`` is told each file that a page has to show (or,
    if it is a picture, that the site must have). Raises `BrokenLink`.
    """
    page_of = {source: name for name, source in pages().items()} | generated

    def rewrite(match: re.Match[str]) -> str:
        led = target(file, match[2])
        if led is None:
            return match[0]
        path, anchor = led
        if path in page_of:
            to = page_of[path]
        elif path.endswith(PICTURES):
            to = path.removeprefix("docs/")
            if to == path:
                show(path)
        else:
            to = shown_at(path)
            show(path)
        link = posixpath.relpath(to, posixpath.dirname(page) or ".")
        return f"{match[1]}({link}{'#' + anchor if anchor else ''})"

    return outside_of_code(text, lambda line: LINK.sub(rewrite, line))


LANGUAGES: Final = {
    ".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".proto": "proto", ".p4": "c",
    ".lua": "lua", ".sbatch": "bash", ".service": "ini", ".conf": "ini",
}  # fmt: skip
LINES_MAX: Final = 2000


def shown(path: str) -> str:
    """A page that shows a file, or names what is in a folder."""
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {posixpath.basename(path)}\n\n`{path}`\n\n"
    if (ROOT / path).is_dir():
        names = sorted(
            entry.name + ("/" if entry.is_dir() else "")
            for entry in (ROOT / path).iterdir()
            if not entry.name.startswith((".", "__pycache__"))
        )
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    lines = (ROOT / path).read_text().splitlines()
    more = f"\n(The first {LINES_MAX:,} of {len(lines):,} lines.)\n" if len(lines) > LINES_MAX else ""
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return head + "\n".join((f"~~~~~{language}", *lines[:LINES_MAX], "~~~~~", more))
