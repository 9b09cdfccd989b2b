"""What ranks that join a job tell each other by the store of their process group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch._C._distributed_c10d import Store
from torch.distributed import DistError

KEY = "cannot-join"


class StoreWord:
    """`inagg_host.membership.word.Word`, by a store in which no other job has the same keys."""

    def __init__(self, store: Store, rank: int, why_closed: Callable[[], str | None]) -> None:
        """``rank`` of the process group. ``why_closed``: why this rank gives up, if it does."""
        self._store, self._rank, self._why_closed = store, rank, why_closed

    def give(self, why: str) -> None:
        """Tell the others that this rank cannot join. Nothing happens where the store is gone."""
        with suppress(DistError):
            self._store.set(KEY, f"rank {self._rank} cannot join: {why}")

    def hear(self) -> str | None:
        """What a rank has told, this one if it gives up; or that it cannot be heard any more, since the process with
        the store has ended."""
        if (why := self._why_closed()) is not None:
            self.give(why)
        try:
            return self._store.get(KEY).decode() if self._store.check([KEY]) else None
        except DistError as error:
            return f"the store of the process group is gone, and so is the process that had it: {error}"
