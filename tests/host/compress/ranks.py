"""Ranks in threads of one process, each with a socket of its own, on a real switch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from tests.host.membership.groups import Meeting

from inagg_host.allreduce import AllReduce
from inagg_host.compress import Compressor, Floats
from inagg_host.compress.exchange import Exchange
from inagg_host.compress.memory import Memories
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults

SEED = 0x5EED
T = TypeVar("T")


@dataclass
class Rank:
    """One rank: its way to the sums, and what it remembers."""

    rank: int
    all_reduce: AllReduce
    exchange: Exchange
    memories: Memories = field(default_factory=dict)

    def reduce(self, compressor: Compressor, *vectors: Floats) -> list[Floats]:
        """The sums of vectors 0, 1, ..."""
        return list(self.exchange.reduce(compressor, dict(enumerate(vectors)), self.memories).values())


class Ranks(Sequence[Rank]):
    """All of them."""

    def __init__(self, ranks: list[Rank]) -> None:
        self._ranks = ranks

    def __getitem__(self, index: int) -> Rank:  # type: ignore[override]  # no slices
        return self._ranks[index]

    def __len__(self) -> int:
        return len(self._ranks)

    def run(self, function: Callable[[Rank], T]) -> list[T]:
        """What ``function`` returns on all ranks, which call it at once."""
        with ThreadPoolExecutor(len(self)) as pool:
            return list(pool.map(function, self._ranks))


@contextmanager
def ranks_on(
    switch: str, workers: int, fmt: str, loss: float = 0.0, lanes: int | None = None, fallback: bool = False
) -> Iterator[Ranks]:
    """``workers`` ranks in a job of their own; ``loss``: of datagrams, on either way; ``fallback``: to an inner
    group, when the switch is gone."""
    job, groups = f"compress/{secrets.token_hex(4)}", Meeting(workers).groups()
    inner = Meeting(workers).groups()
    options: dict[str, Any] = {"timeout_s": 30.0}
    if fallback:
        options = {"policy": "fallback", "reconnect_s": 0.5, "join_timeout_s": 1.0, "timeout_s": 3.0}

    def join(rank: int) -> AllReduce:
        return AllReduce(
            switch=switch, job=job, rank=rank, workers=workers, format=fmt, lanes=lanes, seed=SEED, **options,
            inner=inner[rank] if fallback else None,
            wrap_link=(lambda link: FaultLink(link, Faults(drop=loss), seed=rank)) if loss else None,
        )  # fmt: skip

    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        all_reduces = [stack.enter_context(one) for one in pool.map(join, range(workers))]
        yield Ranks(
            [
                Rank(rank, one, Exchange(one, rank, workers, SEED, groups[rank].gather))
                for rank, one in enumerate(all_reduces)
            ]
        )


def gradients(rank: int, step: int, *sizes: int) -> list[Floats]:
    """Different ones on each rank, with a part in common."""
    own, common = np.random.default_rng([rank, step]), np.random.default_rng([99, step])
    return [(own.standard_normal(size) + common.standard_normal(size)).astype(np.float32) for size in sizes]
