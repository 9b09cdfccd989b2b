"""Names that a job may have."""

from __future__ import annotations

import hashlib
import re
from typing import Final

NAME_CHARS_MAX: Final = 64
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
DIGEST_CHARS: Final = 8


def shortened(name: str, chars_max: int) -> str:
    """``name`` if it has no more characters, else its first ones and a digest of the whole: two that begin alike are
    two all the same."""
    if len(name) <= chars_max:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return f"{name[: chars_max - DIGEST_CHARS - 1]}-{digest}"
