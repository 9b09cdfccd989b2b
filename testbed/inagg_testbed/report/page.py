"""One HTML file out of sections of text, tables and pictures; everything inside it, nothing fetched."""

from __future__ import annotations

import base64
import html
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.about { color: #555; margin-top: 0; } figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 2px solid #888; } th:first-child, td:first-child { text-align: left; }
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


def render(title: str, about: str, sections: Sequence[Section], data: Mapping[str, Any]) -> str:
    """The page. ``data`` is kept in it as JSON (in the element "data"), so that a report can be read by programs."""
    # "<" cannot end the script element, nor begin a comment in it
    kept = json.dumps(data, default=str).replace("<", "\\u003c")
    body = "\n".join(map(_section, sections))
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
<p class="about">{html.escape(about)}</p>
{body}
<script id="data" type="application/json">{kept}</script>
</body>
</html>
"""


def write(path: Path, title: str, about: str, sections: Sequence[Section], data: Mapping[str, Any]) -> Path:
    """Write the page, whole or not at all, and return where it is. Raises OSError if it cannot."""
    path = path.expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(render(title, about, sections, data), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def about_here(command: str) -> str:
    """The line below a title: the command, this machine and the date."""
    from ..cache import machine

    here = machine()
    date = time.strftime("%Y-%m-%d %H:%M")
    return f"{command} · {date} · inagg {here['inagg']} · {here['cores']} cores, {here['processor']}"
