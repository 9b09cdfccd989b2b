"""What the Tofino compiler made of the program: all that a packet meets, from parser to deparser.

From the assembler's input (.bfa): where fields are, parsers, deparsers, gateways, which table is next, what actions do.
From context.json: keys and entries of tables. The tests execute it, and compare what comes out with the reference.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from assembly import Containers, part, read
from parsing import deparser, parser
from registers import registers
from tables import pipeline

WAYS: Final = ("ingress", "egress")

Json = dict[str, Any]


def sources(folder: Path) -> dict[str, str]:
    """SHA-256 of each P4 source of the program, by its path below p4/. ``folder``: p4/."""
    files = [*folder.glob("tofino/*.p4"), *folder.glob("include/*.p4")]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def extract(context: Json, assembly: str, compiler: str, folder: Path) -> Json:
    """The artefact, as it stands in compiled.json. Raises ValueError if something cannot be read, as nothing may be
    left out."""
    root = read(assembly)
    entries: dict[str, list[Any]] = {}
    places = {way: Containers(part(root, "phv", way)) for way in WAYS}
    made: Json = {
        "compiler": compiler,
        "sources": sources(folder),
        "registers": registers(assembly, places["ingress"]),
        "parsers": {way: parser(part(root, "parser", way), places[way]) for way in WAYS},
        "deparsers": {way: deparser(part(root, "deparser", way), places[way]) for way in WAYS},
        "pipelines": {way: pipeline(root, way, context, places[way], entries) for way in WAYS},
    }
    return made | {"entries": entries}


def dump(artefact: Json) -> str:
    """As text, a table, a state of a parser or an entry a line."""

    def text(value: Any, depth: int) -> str:
        if depth == 0 or not isinstance(value, dict | list) or not value:
            return json.dumps(value, separators=(",", ":"))
        if isinstance(value, dict):
            items = [f"{json.dumps(key)}: {text(inner, depth - 1)}" for key, inner in value.items()]
            return "{\n" + ",\n".join(items) + "\n}"
        return "[\n" + ",\n".join(text(inner, depth - 1) for inner in value) + "\n]"

    depths = {"compiler": 0, "sources": 1, "registers": 1, "parsers": 3, "deparsers": 2, "pipelines": 3, "entries": 2}
    parts = [f"{json.dumps(key)}: {text(artefact[key], depth)}" for key, depth in depths.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"
