"""The version of inagg."""

from __future__ import annotations

import platform


def version_text() -> str:
    """The version of inagg that runs."""
    from importlib.metadata import PackageNotFoundError, version  # a switch without metrics and live view asks for none

    try:
        return version("inagg")
    except PackageNotFoundError:
        return f"unknown, Python {platform.python_version()}"
