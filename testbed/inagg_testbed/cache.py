"""Measurements of this machine that are kept between runs: JSON files with a date and the machine that they are of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import time
from functools import cache
from pathlib import Path
from typing import Any

import click

from inagg_switch.cli.new_files import write_whole


@cache
def machine() -> dict[str, Any]:
    """Facts that measurements depend on: processor, cores that this process may use, kernel, versions of what runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "inagg": importlib.metadata.version("inagg"),
        "numba": importlib.metadata.version("numba"),
    }


def machine_key() -> str:
    """A short name of `machine`, equal where it is equal."""
    return hashlib.sha256(json.dumps(machine(), sort_keys=True).encode()).hexdigest()[:12]


def folder() -> Path:
    """Where the files are: $XDG_CACHE_HOME/inagg, by default ~/.cache/inagg."""
    base = os.environ.get("XDG_CACHE_HOME")
    # not Path.home(), which raises for a user whom nobody knows, such as one of a container
    return Path(base or os.path.expanduser("~/.cache")) / "inagg"


def path(name: str) -> Path:
    """The file of this machine's measurements called ``name``."""
    return folder() / f"{name}-{machine_key()}.json"


def load(name: str) -> dict[str, Any] | None:
    """Return the content that was kept, with "date" and "machine"; None if nothing was, on this machine, or if it
    cannot be read."""
    try:
        kept = json.loads(path(name).read_text())
    except (OSError, ValueError):  # the latter: it is no JSON, or no text
        return None
    return kept if isinstance(kept, dict) and kept.get("machine") == machine() else None


def keep(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """Write a file, whole or not at all, and return what `load` will. Where it cannot be written that is said, and
    nothing is kept."""
    full = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": machine(), **content}
    target = path(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, json.dumps(full, indent=1))
    except OSError as error:
        told = f"Warning: what was measured is not kept, as {target.parent} cannot be written ({error.strerror})"
        click.echo(f"{told}: set XDG_CACHE_HOME", err=True)
    return full
