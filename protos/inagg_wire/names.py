"""Names that a job may have."""

from __future__ import annotations

import re
from typing import Final

NAME_CHARS_MAX: Final = 64
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
