"""Links of the pages lead somewhere in the tree, to a heading that is there; each page is on the site, once."""

from __future__ import annotations

import re

import pytest
import yaml

from inagg_docs import tree

PAGES = sorted(tree.pages().items())
SOURCES = sorted({source for _, source in PAGES})
every_page = pytest.mark.parametrize("file", SOURCES)


def anchors(file: str) -> set[str]:
    """As GitHub and the site make them of headings, and those that stand in the text."""
    text = (tree.ROOT / file).read_text()
    found: list[str] = []

    def collect(line: str) -> str:
        if heading := re.match(r"#+ (.*)", line):
            plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading[1])
            found.append(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
        found.extend(re.findall(r'<a id="([^"]+)">', line))
        return line

    tree.outside_of_code(text, collect)
    return set(found)


@every_page
def test_links_lead_to_files_and_headings_that_are_there(file: str) -> None:
    for link in tree.links((tree.ROOT / file).read_text()):
        led = tree.target(file, link)
        if led is not None and led[1] and led[0].endswith(".md"):
            assert led[1] in anchors(led[0]), f"{file}: {link}"


@every_page
def test_links_in_html_lead_somewhere(file: str) -> None:
    for link in re.findall(r'(?:src|srcset|href)="([^"#]+)"', (tree.ROOT / file).read_text()):
        tree.target(file, link)


def test_a_link_that_leads_nowhere_is_found() -> None:
    assert tree.links("a [b](c.md), `[d](e)`\n\n    [f](g)\n\n[`h`](i)") == ["c.md", "i"]
    with pytest.raises(tree.BrokenLink, match=r"docs/install.md: nothing is at nowhere.md"):
        tree.target("docs/install.md", "nowhere.md")
    with pytest.raises(tree.BrokenLink):
        tree.target("README.md", "../outside")


def test_links_are_rewritten_for_the_site() -> None:
    shown: list[str] = []
    text = "[a](../p4/README.md#x) [b](install.md) [c](../switch/alerts.yml) [d](https://e)"
    text += " ![f](../testbed/results/noise.svg)"
    made = tree.for_the_site("testbed.md", "docs/testbed.md", text, {}, shown.append)
    assert made == (
        "[a](p4.md#x) [b](install.md) [c](files/switch/alerts.yml.md) [d](https://e) ![f](testbed/results/noise.svg)"
    )
    assert shown == ["switch/alerts.yml", "testbed/results/noise.svg"]


def test_every_markdown_file_of_the_tree_is_a_page() -> None:
    folders = ("command", "deploy", "docs", "examples", "host", "p4", "protos", "switch", "testbed", "tests")
    found = {str(path.relative_to(tree.ROOT)) for folder in folders for path in (tree.ROOT / folder).rglob("*.md")}
    assert found | {"README.md", "CHANGELOG.md"} == set(SOURCES)


def test_the_navigation_has_every_page_once() -> None:
    text = (tree.ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    generated = {f"reference/{name}.md" for name in ("commands", "control", "metrics", "options")}
    named = re.findall(r"[\w/-]+\.md", text)
    assert sorted(named) == sorted(set(named) | {page for page, _ in PAGES} | generated)
    assert yaml.safe_load(text)


def test_the_first_page_is_short() -> None:
    assert len((tree.ROOT / "README.md").read_text().splitlines()) < 150
