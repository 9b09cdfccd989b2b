"""Ranks meet by a store in which earlier attempts of the same job may have left their keys.

torchrun keeps one TCPStore over all restarts (unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1), so a rank of the second
attempt may read what one of the first wrote, and Gloo then connects to an address where nobody is. Ranks that have met
here agree on a name that no attempt before had, and write their keys under it.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from inagg_host.errors import AllReduceError

POLL_S = (0.001, 0.02)
"""Time between two looks at the store, first and longest: it doubles."""


def rendezvous(store: Store, rank: int, workers: int, timeout: timedelta) -> PrefixStore:
    """Return a part of ``store`` that is new and the same on all ranks, which all call this at once. Raises
    `AllReduceError` if not all come within ``timeout``.

    Each rank says hello with a nonce. Rank 0 welcomes all with its own nonce and those that it read. A rank that finds
    its nonce there knows that this rank 0 lives now, and accepts by repeating rank 0's nonce: so rank 0 knows that this
    rank lives now, for nobody could have repeated it before. When all have accepted, they go.
    """
    limit_s = timeout.total_seconds()
    nonce, give_up_s, pause_s = secrets.token_hex(8), time.monotonic() + limit_s, POLL_S[0]
    ranks = _Rendezvous(store, rank, workers, nonce)
    step = ranks.lead if rank == 0 else ranks.follow
    while (name := step()) is None:
        if time.monotonic() > give_up_s:
            raise AllReduceError(
                f"rank {rank} waited {limit_s:g} s for {ranks.awaited()} to come to the process group; "
                "see what is printed there, or give init_process_group a longer timeout"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S[1])
    return PrefixStore(f"{name}/", store)


class _Rendezvous:
    def __init__(self, store: Store, rank: int, workers: int, nonce: str) -> None:
        self._store, self._rank, self._nonce = PrefixStore("meeting/", store), rank, nonce
        self._hellos: dict[int, str] = {}
        self._absent = set(range(1, workers)) if rank == 0 else {0}
        if rank:
            self._store.set(f"hello/{rank}", nonce)

    def awaited(self) -> str:
        """The ranks that have not come, for people."""
        if not self._absent:
            return "the other ranks"
        first = sorted(self._absent)[:8]
        return ("rank " if len(self._absent) == 1 else "ranks ") + ", ".join(map(str, first)) + (
            f" and {len(self._absent) - len(first)} more" if len(self._absent) > len(first) else ""
        )  # fmt: skip

    def lead(self) -> str | None:
        """Do rank 0's part once more; return the name when all have accepted."""
        for rank in sorted(self._absent):
            if self._read(f"accepted/{rank}") == self._nonce:
                self._absent.discard(rank)
                continue
            hello = self._read(f"hello/{rank}")
            if hello is not None and self._hellos.get(rank) != hello:
                self._hellos[rank] = hello
                self._store.set(f"welcome/{rank}", f"{self._nonce} {hello}")
        if self._absent:
            return None
        self._store.set("go", self._nonce)
        return self._nonce

    def follow(self) -> str | None:
        """Do another rank's part once more; return the name when rank 0 says go."""
        welcome = (self._read(f"welcome/{self._rank}") or " ").split(" ")
        if welcome[1] != self._nonce:
            return None
        if self._absent:
            self._store.set(f"accepted/{self._rank}", welcome[0])
            self._absent.clear()
        return welcome[0] if self._read("go") == welcome[0] else None

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None
