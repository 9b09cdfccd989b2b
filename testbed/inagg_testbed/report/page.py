"""One HTML file out of sections of text, tables and pictures; everything inside it, nothing fetched."""

from __future__ import annotations

import base64
import html
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inagg.lazy_group import typed
from inagg_switch.cli.new_files import write_whole

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --quiet: #555; --line: #ddd; --lines: #888; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --page: #191919; --quiet: #a8a8a8; --line: #3a3a3a; --lines: #777; }
  img { filter: invert(.9) hue-rotate(180deg); } /* white becomes the color of the page, and colors keep their hue */
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.headline { font-size: 1.2rem; margin: .6rem 0; }
.about { color: var(--quiet); margin-top: 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
figcaption, .note { color: var(--quiet); font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { border-bottom: 2px solid var(--lines); } th:first-child, td:first-child { text-align: left; }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG. ``caption`` says what it shows, for those who cannot see it as well."""

    png: bytes
    caption: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: the names of its columns, and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is below it, in this order: text, table, pictures."""

    title: str
    text: str = ""
    grid: Grid | None = None
    pictures: Sequence[Picture] = ()


def _grid(grid: Grid) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in grid.columns)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in grid.rows)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>\n</table></div>'


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    caption = html.escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.grid is not None:
        parts.append(_grid(section.grid))
    return "\n".join(parts + [_picture(picture) for picture in section.pictures])


def render(
    title: str, about: str, sections: Sequence[Section], data: Mapping[str, Any], headline: Sequence[str] = ()
) -> str:
    """The page. ``headline``: sentences with what the report shows. ``data`` is kept in it as JSON (in the element
    "data"), so that a report can be read by programs."""
    # "<" cannot end the script element, nor begin a comment in it
    kept = json.dumps(data, default=str).replace("<", "\\u003c")
    body = "\n".join(map(_section, sections))
    head = "\n".join(f'<p class="headline">{html.escape(sentence)}</p>' for sentence in headline)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
{head}
<p class="about">{html.escape(about)}</p>
{body}
<script id="data" type="application/json">{kept}</script>
</body>
</html>
"""


def write(
    path: Path, title: str, about: str, sections: Sequence[Section], data: Mapping[str, Any],
    headline: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write the page, whole or not at all, and return where it is. Raises OSError if it cannot."""
    path = path.absolute()
    write_whole(path, render(title, about, sections, data, headline))
    return path


def about_here(command: str) -> str:
    """The line below a title: the command as it was typed (else ``command``), this machine and the date."""
    from ..cache import machine

    command = typed() or command
    here = machine()
    date = time.strftime("%Y-%m-%d %H:%M")
    return f"{command} · {date} · inagg {here['inagg']} · {here['cores']} cores, {here['processor']}"
