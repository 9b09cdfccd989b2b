"""The environment variables that these packages read, so that one that is misspelt is not passed over in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "INAGG_"
NAMES: Final = frozenset(
    PREFIX + name
    for name in (
        "SWITCH", "JOB", "FORMAT", "LANES", "WINDOW", "SEED", "POLICY", "TIMEOUT", "JOIN_TIMEOUT", "RECONNECT",
        "HEARTBEAT_LIMIT", "REJOIN_LIMIT", "HOST", "CA", "CERTIFICATE", "KEY", "SECRET", "LOCAL_SIZE", "MIN_BYTES",
        "SUMMARY", "BLOCKING_WAIT", "CUDA_INNER", "REDUCE_SCATTER_FORMAT", "TESTBED", "COMPLETE",
    )
)  # fmt: skip
"""Names of all variables; a test compares them with the sources."""
NEAR: Final = 0.8
"""Likeness of names that differ by a slip of the finger (`difflib.SequenceMatcher.ratio`)."""


def misspelt(environ: Iterable[str]) -> list[str]:
    """A sentence for each variable that is none of ours but nearly one of them."""
    unknown = sorted(name for name in environ if name.upper().startswith(PREFIX[:-1]) and name not in NAMES)
    found = []
    for name in unknown:
        if near := difflib.get_close_matches(name.upper(), NAMES, 1, NEAR):
            found.append(f"the variable {name} is not read: did you mean {near[0]}?")
    return found
