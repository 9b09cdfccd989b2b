"""Descriptors of files and connections: as many as the system allows, and a warning before they run out."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from inagg_link.limits import MORE_FILES

CONNECTIONS: Final = 0.9
"""The share of the limit that connections may take."""
SHORT: Final = 0.8
"""The share of the limit from which on descriptors count as short."""

OWN: Final = 30
"""Descriptors that a switch has open before anybody connects, and a few more; with less, gRPC ends the process."""
OF_SHARD: Final = 3
"""Descriptors that it has open for each of its shards."""


def raise_limit() -> int:
    """Take as many as this process may (getrlimit(2)): by default the soft limit is 1024, and each worker's connection
    is one. The limit that there is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # a container may forbid it: then `shortage` says so in time
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_max(most: int) -> int:
    """The number of connections that leave some descriptors for the rest, ``most`` at most."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, int(CONNECTIONS * limit)))


def why_too_few(limit: int, shards: int) -> str | None:
    """Reason why a switch of so many ``shards`` cannot begin with this limit (`raise_limit`), and what to do; None: it
    can."""
    needed = OWN + OF_SHARD * shards
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return None
    needs = (
        f"this process may have {limit} files and connections open, and needs {needed}, and one more for each worker"
    )
    return f"{needs}: {MORE_FILES}"


def shortage() -> tuple[int, int] | None:
    """Descriptors that are open, and those that may be, if they are short; else None."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:  # none is left to look with
        opened = limit
    return (opened, limit) if opened >= SHORT * limit else None
