"""Workers in threads of one process, each with a socket of its own, on a real switch in a process of its own.

What they send and receive are real datagrams on loopback, counted on each worker's link.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from inagg_host.allreduce import AllReduce
from inagg_host.compress import Aggregation, Compressor, Floats
from inagg_host.compress import exchange as exchange_module
from inagg_host.compress.exchange import Exchange
from inagg_host.compress.memory import Memories
from inagg_host.core.schedule import chunk_blocks, scales_per_block
from inagg_link.base import Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_wire import formats
from inagg_wire.layout import Encoding, datagram_bytes

from ..topology.link import HEADER_BYTES
from .counting import CountingLink

PATIENCE_S = 120.0
ETHERNET_PAYLOAD_BYTES = 1460
"""Payload of a gather over TCP, frames of 1500 bytes; each has as many bytes of headers as a datagram, and 12 more."""
TCP_MORE_BYTES = 12
S = TypeVar("S")
T = TypeVar("T")


def at_once(pool: ThreadPoolExecutor, function: Callable[[S], T], of: Sequence[S]) -> list[T]:
    """Call ``function`` on each, in a thread of its own; return the results in order. Raises what was raised first:
    that the others then waited in vain comes of it."""
    futures = [pool.submit(function, one) for one in of]
    for done in as_completed(futures):
        done.result()
    return [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one worker, in each direction: with Ethernet, IP and UDP (or TCP) headers."""

    up: int
    down: int


class Gathering:
    """Where the threads tell each other bytes."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers, timeout=PATIENCE_S)
        self._told: list[bytes] = [b""] * workers

    def gather(self, rank: int, data: bytes) -> list[bytes]:
        """The bytes of all ranks, which must all do this."""
        self._told[rank] = data
        self._barrier.wait()
        told = list(self._told)
        self._barrier.wait()  # nobody tells the next before all have taken this
        return told


@dataclass(slots=True)
class Worker:
    """One rank."""

    rank: int
    all_reduce: AllReduce
    link: CountingLink
    exchange: Exchange
    memories: Memories = field(default_factory=dict)


class Cluster:
    """All ranks of a job. See `open_cluster`."""

    def __init__(self, workers: Sequence[Worker], pool: ThreadPoolExecutor) -> None:
        self.workers, self._pool = workers, pool

    def run(self, function: Callable[[Worker], T]) -> list[T]:
        """Call ``function`` on all ranks at once; return the results by rank."""
        return at_once(self._pool, function, self.workers)

    def sums(self, compressor: Compressor, vectors: Sequence[Sequence[Floats]], first: int = 0) -> list[Floats]:
        """The sums of vectors ``first``, ``first`` + 1, ... over all ranks; ``vectors[rank]`` are those of a rank.

        Raises ArithmeticError if the ranks did not get the same, to the bit.
        """

        def reduce(worker: Worker) -> list[Floats]:
            mine = dict(enumerate(vectors[worker.rank], first))
            return list(worker.exchange.reduce(compressor, mine, worker.memories).values())

        results = self.run(reduce)
        if any(a.tobytes() != b.tobytes() for other in results[1:] for a, b in zip(results[0], other, strict=True)):
            raise ArithmeticError("the workers do not have the same sums")
        return results[0]

    def traffic(self) -> Traffic:
        """Bytes of rank 0 since the beginning, each datagram once. A gather counts as in a ring: each worker passes
        on the messages of all the others."""
        worker = self.workers[0]
        up, down = (t.payload_bytes + t.datagrams * HEADER_BYTES for t in (worker.link.up, worker.link.down))
        gathered = worker.exchange.counts["gathered-bytes"] * (len(self.workers) - 1)
        frames = -(-gathered // ETHERNET_PAYLOAD_BYTES)
        gathered += frames * (HEADER_BYTES + TCP_MORE_BYTES)
        return Traffic(up + gathered, down + gathered)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return record.module != exchange_module.__name__.rpartition(".")[2]


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without the warnings of exchanges: they advise who trains, and here nobody has chosen the compressors."""
    exchange_module.log.addFilter(_is_no_advice)
    try:
        yield
    finally:
        exchange_module.log.removeFilter(_is_no_advice)


@contextmanager
def open_cluster(
    switch: str, workers: int, fmt: str, seed: int, name: str, loss: float = 0.0, lanes: int | None = None
) -> Iterator[Cluster]:
    """``workers`` ranks in the job ``name`` on the switch with this control address, until the end of the block.

    ``seed``: of all noise. ``loss``: share of the datagrams that is lost on the way to and from each rank. ``lanes``:
    None for as many as fit a datagram of a network of 1500 bytes, though loopback could carry more.
    """

    links: dict[int, CountingLink] = {}

    def wrap(rank: int, link: Link) -> Link:
        links[rank] = CountingLink(link)
        return FaultLink(links[rank], Faults(drop=loss), seed=rank) if loss else links[rank]

    def join(rank: int) -> AllReduce:
        return AllReduce(
            switch=switch,
            job=name,
            rank=rank,
            workers=workers,
            format=fmt,
            lanes=formats.job_format(fmt).max_lanes(workers) if lanes is None else lanes,
            seed=seed,
            timeout_s=PATIENCE_S,
            join_timeout_s=PATIENCE_S,
            wrap_link=partial(wrap, rank),
        )

    gathering = Gathering(workers)
    with ExitStack() as stack, _no_advice(), ThreadPoolExecutor(workers) as pool:
        all_reduces = [stack.enter_context(one) for one in at_once(pool, join, range(workers))]
        members = []
        for rank, one in enumerate(all_reduces):
            exchange = Exchange(one, rank, workers, seed, partial(gathering.gather, rank))
            members.append(Worker(rank, one, links[rank], exchange))
        yield Cluster(members, pool)


def job_format(compressor: Compressor) -> str:
    """The format of the job in which it is summed; for a gather any will do."""
    return "nat8" if compressor.aggregation is Aggregation.GATHER else compressor.formats[0]


def bytes_up(fmt_name: str, workers: int, elements: int, max_rounds: int = 0) -> int:
    """Bytes that a worker sends to have ``elements`` summed, by the formats: UDP payload of full datagrams of values,
    of their blocks of scales, and of ``max_rounds`` MAX rounds besides. (nat8 on the way down: the same.)"""
    fmt = formats.job_format(fmt_name)
    lanes = fmt.max_lanes(workers)
    blocks = -(-elements // lanes)
    scales = scales_per_block(fmt.scale_lanes(lanes))
    chunks = -(-blocks // chunk_blocks(lanes, scales, scales))  # of full datagrams, one block has the scales of a chunk
    scale_bytes = datagram_bytes(Encoding.SCALE8, fmt.scale_lanes(lanes))
    return blocks * datagram_bytes(fmt.up, lanes) + (chunks * (2 if fmt.refined else 1) + max_rounds) * scale_bytes
