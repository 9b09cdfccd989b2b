"""torchft: a process group over the switch that is made anew whenever replicas come or go.

    manager = torchft.Manager(pg=ProcessGroupInagg(timeout=timedelta(seconds=30)), ...)

It needs the package torchft (the extra "torchft"). Each quorum is a job of its own on the switch.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Unpack

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup
from torchft.process_group import ProcessGroupWrapper

from .backend import InaggGroup
from .options import GroupOptions


class ProcessGroupInagg(ProcessGroupWrapper):
    """Process group for `torchft.Manager` (``pg``): sums go through the switch, the rest through Gloo (or NCCL)."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60), **options: Unpack[GroupOptions]) -> None:
        """``timeout``: of an operation, and of how long replicas wait for each other when a quorum begins; that of the
        manager fits. ``options``: as `inagg_host.torch.Options`."""
        super().__init__(timeout)
        self._options: dict[str, Any] = {**options}

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        label = re.sub(r"[^0-9a-zA-Z]", "-", f"quorum-{self._quorum_id}")
        return InaggGroup(store, rank, world_size, self._timeout, label, self._options)

    def errored(self) -> Exception | None:
        """Why the group of this quorum can do nothing any more; None if it can. The manager then does not commit the
        step, and makes a new group."""
        group: Any = self.__dict__["_pg"]
        return group.get_error() if isinstance(group, InaggGroup) else None

    def abort(self, errored: bool = True) -> None:
        """Have all that waits fail, on all replicas (``errored``); or leave without a word, as each does when a new
        quorum begins."""
        group: Any = self.__dict__["_pg"]
        if isinstance(group, InaggGroup) and not errored:
            group.shutdown()
            self._pg = None
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave the job: no other replica is disturbed."""
        group: Any = self.__dict__["_pg"]
        if isinstance(group, InaggGroup):
            group.shutdown()
        super().shutdown()

    def getBackendName(self) -> str:  # noqa: N802  # torch calls it
        """Return a name like those of torchft's own groups."""
        return "torchft-inagg"
