"""What MkDocs calls: pages that stand elsewhere in the tree, pages that are generated, links as the site needs them."""

from __future__ import annotations

import re
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

from inagg_docs import commands, control, metrics, options, tree

GENERATED: Final = {
    "reference/commands.md": commands.page,
    "reference/control.md": control.page,
    "reference/metrics.md": metrics.page,
    "reference/options.md": options.page,
}
MADE_OF: Final = {
    "command/inagg/cli.py": "reference/commands.md",
    "host/inagg_host/config.py": "reference/options.md",
    "switch/inagg_switch/service/metric_names.py": "reference/metrics.md",
    "protos/inagg_proto/v1/control.proto": "reference/control.md",
}
"""What generated pages are made of. In the tree a link leads to the source, on the site to the page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files in docs/, and pages and pictures for all that they lead to."""
    texts: dict[str, str] = {}
    to_show: set[str] = set()
    for page, source in tree.pages().items():
        text = (tree.ROOT / source).read_text()
        try:
            texts[page] = tree.for_the_site(page, source, _without_markers(_themed(text)), MADE_OF, to_show.add)
        except tree.BrokenLink as error:
            raise PluginError(str(error)) from None
    texts |= {page: make() for page, make in GENERATED.items()}
    for page, text in texts.items():
        if page in files.src_uris:
            files.remove(files.src_uris[page])
        files.append(File.generated(config, page, content=text))
    for path in sorted(to_show):
        if path.endswith(tree.PICTURES):
            shown = File.generated(config, path, abs_src_path=str(tree.ROOT / path))
        else:
            page = tree.shown_at(path)
            shown = File.generated(config, page, content=tree.shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(shown)
    return files


def _themed(text: str) -> str:
    """A `<picture>` for light and dark becomes two pictures, of which the theme shows one."""
    return re.sub(
        r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
        r'<img alt="([^"]+)" src="([^"]+)">\s*</picture>',
        r"![\2](\3#only-light)\n![\2](\1#only-dark)",
        text,
    )


def _without_markers(text: str) -> str:
    """Comments tell the tests about code blocks (`inagg_docs.blocks`), and readers of the site nothing."""
    return re.sub(r"^<!-- .*? -->\n", "", text, flags=re.M)
