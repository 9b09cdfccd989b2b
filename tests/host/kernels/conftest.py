"""Numba's cache does not see when a file that a kernel calls into has changed; so start without what may be old."""

from __future__ import annotations

from pathlib import Path

import inagg_host.kernels

_PACKAGE = Path(inagg_host.kernels.__file__).parent
_changed = max(source.stat().st_mtime for source in _PACKAGE.glob("*.py"))
for _index in (_PACKAGE / "__pycache__").glob("*.nbi"):
    if _index.stat().st_mtime < _changed:
        _index.unlink(missing_ok=True)  # by another test process, maybe
