"""Read the golden vectors: what `README.md` beside this file says of them, as Python values."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

Vector = dict[str, Any]
"""One vector: ``what`` says what it shows; the rest is the file's own."""


def names() -> list[str]:
    """The names of all committed files, without ``.json``."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def load(name: str) -> dict[str, Any]:
    """The file ``name``.json. Do not change what you get: all callers share it."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def vectors(name: str, section: str = "vectors") -> list[Vector]:
    """The vectors in one section of a file."""
    found: list[Vector] = load(name)[section]
    return found


def label(vector: Vector) -> str:
    """What a vector shows, as a test id: ``pytest.mark.parametrize("vector", vectors("codes"), ids=label)``."""
    return str(vector["what"])
