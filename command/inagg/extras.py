"""Modules that are installed with an extra only: asked for before any work begins."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Final

import click

EXTRA_OF_MODULE: Final = {
    "torch": "torch",
    "matplotlib": "report",
    "scapy": "capture",
    "pyroute2": "testbed",
    "sklearn": "testbed",
    "torchft": "torchft",
}
"""Optional imports, by top-level module: the extra that brings them."""


def install(*modules: str) -> str:
    """The command that installs them: of a clone, as the name alone would be looked up in a package index."""
    return f"pip install '.[{','.join(sorted({EXTRA_OF_MODULE[name] for name in modules}))}]' (in inagg's clone)"


class MissingExtra(click.ClickException):
    """Something is not installed; the text says how to install it."""

    exit_code = 2  # as for wrong usage: nothing was done

    def __init__(self, modules: Iterable[str]) -> None:
        names = list(modules)
        are = "is" if len(names) == 1 else "are"
        told = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        super().__init__(f"this needs {told}, which {are} not installed. Install: {install(*names)}")


def require(*modules: str) -> None:
    """Raises `MissingExtra` for those that are not installed. Imports none of them."""
    if absent := missing(*modules):
        raise MissingExtra(absent)


def missing(*modules: str) -> list[str]:
    """Return those of ``modules`` that are not installed."""
    return [name for name in modules if importlib.util.find_spec(name) is None]
