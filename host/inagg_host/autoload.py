"""The entry point of the group "torch.backends", which torch calls when it is imported.

So that `init_process_group("inagg")` works in scripts and launchers that import nothing of ours. It runs in every
process that imports torch in an environment with inagg: it imports nothing heavy, and cannot fail.
"""

from __future__ import annotations

import logging
from typing import Any

BACKEND = "inagg"


def register() -> None:
    """Make the backend known to torch.distributed, if this build has that. No error if called twice."""
    try:
        import torch.distributed as dist

        if dist.is_available():
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as error:  # torch makes any error one of `import torch`, which must not fail for us
        logging.getLogger("inagg").warning('the backend "inagg" is not there: %s: %s', type(error).__name__, error)


def _create(given: Any, options: object) -> Any:
    from .torch.backend import create

    return create(given, options)
