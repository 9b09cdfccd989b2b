"""The site that MkDocs builds: no link in it is broken, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from inagg_docs.tree import ROOT, pages

LOADED = {"script": "src", "img": "src", "link": "href", "source": "srcset", "iframe": "src"}
"""Tag -> the attribute that names what a browser fetches for it."""


class Page(HTMLParser):
    """What a page loads, where its links lead, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADED and values.get("rel") != "canonical" and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.anchors |= {values[name] for name in ("id", "name") if name in values}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def found(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    for page in pages():
        assert (site / page).with_suffix(".html").exists()


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path, found: dict[Path, Page]) -> None:
    for path, page in found.items():
        for url in page.loads:
            assert not urlsplit(url).netloc, f"{path}: {url}"
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(), sheet


@pytest.mark.slow
def test_every_link_and_anchor_is_there(site: Path, found: dict[Path, Page]) -> None:
    for path, page in found.items():
        if path.name == "404.html":  # its links are of wherever the site is served
            continue
        for url in (*page.loads, *page.links):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            led = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            led = led / "index.html" if led.is_dir() else led
            assert led.is_file(), f"{path.relative_to(site)}: {url}"
            if parts.fragment and led in found and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in found[led].anchors, f"{path.relative_to(site)}: {url}"
