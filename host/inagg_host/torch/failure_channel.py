"""The failure channel of ranks that join a job, in the store of their process group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch._C._distributed_c10d import Store
from torch.distributed import DistError

KEY = "cannot-join"


class StoreFailureChannel:
    """A `JoinFailureChannel` (`inagg_host.membership`) in a store where no other job has the same keys."""

    def __init__(self, store: Store, rank: int, why_closed: Callable[[], str | None]) -> None:
        """``rank`` of the process group. ``why_closed``: why this rank gives up, if it does."""
        self._store, self._rank, self._why_closed = store, rank, why_closed

    def publish(self, why: str) -> None:
        """Tell the others that this rank cannot join. Nothing happens where the store is gone."""
        with suppress(DistError):
            self._store.set(KEY, f"rank {self._rank} cannot join: {why}")

    def poll(self) -> str | None:
        """The sentence of a rank, this one if it gives up; or that none can be heard any more, since the process with
        the store has ended."""
        if (why := self._why_closed()) is not None:
            self.publish(why)
        try:
            return self._store.get(KEY).decode() if self._store.check([KEY]) else None
        except DistError as error:
            return f"the store of the process group is gone, and so is the process that had it: {error}"
