"""The file: whole, self-contained, and nothing in it that a text could break."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from inagg_testbed.report.page import Grid, Picture, Section, about_here, render, write

HOSTILE = "</script><b>&"


class Reader(HTMLParser):
    """Collects the tags, their addresses and the text outside style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.data = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.data += data
        elif self._inside != "style":
            self.text += data


def sections() -> list[Section]:
    grid = Grid(["system", HOSTILE], [["switch", HOSTILE]])
    return [Section(f"heading {HOSTILE}", HOSTILE, grid, [Picture(b"\x89PNG", HOSTILE)])]


def test_everything_is_in_the_file() -> None:
    page = render("title", "about", sections(), {})
    (address,) = Reader(page).addresses
    assert address == "data:image/png;base64,iVBORw=="
    assert "http" not in page


def test_text_stays_text() -> None:
    reader = Reader(render(HOSTILE, HOSTILE, sections(), {"x": HOSTILE}))
    assert "b" not in reader.tags
    assert reader.tags.count("script") == 1
    assert reader.text.count(HOSTILE) >= 6


def test_the_data_can_be_read_again() -> None:
    data = {"steps": [1, 2.5], "text": HOSTILE, "path": Path("/x")}
    assert json.loads(Reader(render("", "", [], data)).data) == {**data, "path": "/x"}


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "report.html", "title", "", [], {})
    assert path.is_absolute()
    assert path.read_text() == render("title", "", [], {})
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("place", ["file", "missing"])
def test_a_place_that_cannot_be_written_is_an_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=place):
        write(tmp_path / place / "report.html", "", "", [], {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "no folder is made"


def test_the_line_below_the_title_says_what_made_it_and_where() -> None:
    line = about_here("inagg demo")
    assert line.startswith("inagg demo · ")
    assert "cores" in line
