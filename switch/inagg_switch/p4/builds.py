"""The compiled programs: which there are, and where their files lie.

They are made from `p4/` by the P4 compiler and committed, so that nobody needs one. In a checkout they lie in
``p4/build``; a wheel has them inside the package.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..binding import Binding

INDEX: Final = "builds.json"
FOLDERS: Final = (
    Path(__file__).with_name("build"),
    Path(__file__).resolve().parents[3] / "p4" / "build",
)
"""Folders of the programs: in a wheel, in a checkout."""

FLAT: Final = "flat"
"""Role of a program for the only switch of a job."""
LEAF: Final = "leaf"
"""Role of a program for a switch of a tree that serves workers."""
ROOT: Final = "root"
"""Role of a program for a switch of a tree that serves switches."""
ROLES: Final = {
    FLAT: "a switch that is no part of a tree",
    LEAF: "a leaf of a tree, with a parent above it",
    ROOT: "the root of a tree, with switches below it",
}
"""Roles of programs, in words."""


class BuildError(ValueError):
    """There is no such program; the text says which there are."""


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled program."""

    name: str
    formats: tuple[str, ...]
    """Job formats that it adds up."""
    lanes: int
    """Most lanes of a job."""
    slots: int
    """Slots, a power of two."""
    jobs: int
    """Most jobs at a time."""
    config: Path
    """The program for the switch, compressed: for bmv2 the compiler's JSON."""
    p4info: Path
    """The compiler's description of the program, as text of the protobuf message P4Info."""
    role: str = FLAT
    """Role: `FLAT`, `LEAF` or `ROOT`."""

    def program(self) -> bytes:
        """The program for the switch. Raises `OSError`."""
        return gzip.decompress(self.config.read_bytes())


def role_for(binding: Binding) -> str | None:
    """The role of the programs that a binding is for; None: there are none."""
    if binding.place is None:
        return FLAT
    if binding.place.from_switches:
        return ROOT if binding.uplink is None else None
    return LEAF if binding.uplink is not None else None


def folder() -> Path:
    """The folder in which the compiled programs lie. Raises `BuildError`."""
    for candidate in FOLDERS:
        if (candidate / INDEX).exists():
            return candidate
    raise BuildError(f"the compiled P4 programs are missing: no {INDEX} in {' or '.join(map(str, FOLDERS))}")


def builds(where: Path | None = None) -> dict[str, Build]:
    """All programs, by name. Raises `BuildError`."""
    where = where or folder()
    index: dict[str, Any] = json.loads((where / INDEX).read_text())
    return {
        entry["name"]: Build(
            name=entry["name"],
            formats=tuple(entry["formats"]),
            lanes=entry["lanes"],
            slots=entry["slots"],
            jobs=entry["jobs"],
            config=where / entry["json"],
            p4info=where / entry["p4info"],
            role=entry["role"],
        )
        for entry in index["builds"]
    }


def build(name: str, where: Path | None = None) -> Build:
    """A program by name. Raises `BuildError`."""
    known = builds(where)
    if name not in known:
        raise BuildError(f"there is no program {name!r}; choose one of {', '.join(known)}")
    return known[name]
