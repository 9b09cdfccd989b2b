"""The version of inagg."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def version_text() -> str:
    """The version of inagg that runs."""
    try:
        return version("inagg")
    except PackageNotFoundError:
        return f"unknown, Python {platform.python_version()}"
