"""Ranks with transports of their own and a software switch, all in this process, over real sockets on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.core import Engine, Epoch, Operation, ShardLease
from inagg_host.core.operation import Request
from inagg_host.core.schedule import Phase
from inagg_host.io.loop import Loop
from inagg_host.io.transport import Transport
from inagg_host.stats import Counters
from inagg_link.around import LinkAround
from inagg_link.base import Link
from inagg_link.udp import UdpLink
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_switch.software.data_plane import DataPlane
from inagg_testbed.kernel_calls import Call
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

PATIENCE_S = 30.0
JOB, TOKEN, SEED = 7, 0xC0FFEE01, 77
LANES = 64

Array = npt.NDArray[Any]


def lends() -> bool:
    with UdpLink() as link:
        return link.port() is not None


needs_port = pytest.mark.skipif(not lends(), reason="the loop runs on 64-bit Linux with UDP offload only")


class Portless(LinkAround):
    """A link that lends nothing to compiled loops."""


class Switch:
    """One shard of a software switch on a thread."""

    def __init__(self, slots: int, lanes: int) -> None:
        self.link = UdpLink()
        self.aggregator = Aggregator(slots, lanes, 2)
        self._plane = DataPlane(self.link, self.aggregator)
        self._end, commands = Pipe()
        self._thread = threading.Thread(target=self._plane.run, args=(commands, lambda: False), daemon=True)

    def serve(self, binding: Binding) -> None:
        self.aggregator.bind(binding)
        self._thread.start()

    def close(self) -> None:
        self._end.send("end")
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.link.close()
        self._end.close()


@dataclass
class Rank:
    """One rank. ``wrong``: what it has heard of failures."""

    engine: Engine
    link: Link
    transport: Transport
    counters: Counters
    done: list[Operation] = field(default_factory=list)
    wrong: list[Exception] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, what: list[Any], news: Any) -> None:
        with self.news:
            what.append(news)
            self.news.notify_all()

    def submit(
        self,
        values: Array,
        out: Array | None = None,
        float_type: FloatType = FloatType.FLOAT32,
        divisor: int = 1,
        contributed: Array | None = None,
    ) -> None:
        target = values if out is None else out
        self.transport.submit(lambda: self._submit(values, target, float_type, divisor, contributed))

    def _submit(self, *operation: Any) -> None:
        values, out, float_type, divisor, contributed = operation
        self.engine.submit(Request(values, out, float_type, divisor, contributed), 0.0)

    def submit_max(self, values: Array, out: Array) -> None:
        self.transport.submit(lambda: (self.engine.submit(Request(values, out, None), 0.0), None)[1])

    def wait(self, operations: int) -> None:
        """Until so many operations are done. Raises what went wrong."""
        with self.news:
            assert self.news.wait_for(lambda: self.wrong or len(self.done) >= operations, PATIENCE_S), "it takes long"
        if self.wrong:
            raise self.wrong[0]

    def failure(self) -> Exception:
        """Wait for it."""
        with self.news:
            assert self.news.wait_for(lambda: self.wrong, PATIENCE_S), "nothing went wrong"
        return self.wrong[0]


def no_threads(thread: threading.Thread) -> None:
    """In place of `threading.Thread.start`, as where a process may have no more."""
    raise RuntimeError("can't start new thread")


Wrap = Callable[[int, Link], Link]


def as_it_is(rank: int, link: Link) -> Link:
    return link


def portless(rank: int, link: Link) -> Link:
    return Portless(link)


either_loop = pytest.mark.parametrize("wrap", [as_it_is, portless], ids=["compiled", "python"])


class World:
    """A job of ``workers`` ranks. ``wrap``: what to put around each one's socket; ``bound``: changes to the binding."""

    def __init__(
        self,
        stack: ExitStack,
        workers: int = 2,
        fmt: str = "nat8",
        *,
        lanes: int = LANES,
        window: int = 64,
        shards: int = 1,
        keep_results: bool = False,
        wrap: Wrap = as_it_is,
        **bound: Any,
    ) -> None:
        lease, form = Lease(0, 2 * window), job_format(fmt)
        self.switches = [Switch(2 * window, lanes) for _ in range(shards)]
        for switch in self.switches:
            stack.callback(switch.close)
        links = [wrap(rank, UdpLink()) for rank in range(workers)]
        leases = tuple(ShardLease(switch.link.address, lease) for switch in self.switches)
        self.ranks: list[Rank] = []
        for rank, link in enumerate(links):
            engine = Engine(Epoch(1, JOB, TOKEN, form, workers, rank, lanes, SEED, leases), keep_results)
            self.ranks.append(self._start(engine, link))
            stack.callback(self.ranks[-1].transport.close)
        binding: dict[str, Any] = {
            "job": JOB, "token": TOKEN, "format": form, "lanes": lanes, "lease": lease, "seed": SEED,
            "children": tuple(link.address for link in links),
        }  # fmt: skip
        for switch in self.switches:
            switch.serve(Binding(**(binding | bound)))

    def _start(self, engine: Engine, link: Link) -> Rank:
        counters = Counters()
        made: list[Rank] = []  # nothing is finished before something is submitted
        transport = Transport(
            engine,
            link,
            counters,
            lambda operation: made[0].tell(made[0].done, operation),
            lambda error: made[0].tell(made[0].wrong, error),
        )
        made.append(Rank(engine, link, transport, counters))
        return made[0]

    def sum(
        self, arrays: Sequence[Sequence[Array]], types: Sequence[FloatType], at_once: bool = True, divisor: int = 1
    ) -> list[bytes]:
        """Sum by rank r ``arrays[r]``, of ``types``, in place; the sums, which are the same on all ranks."""
        mine = [[array.copy() for array in of_rank] for of_rank in arrays]
        before = len(self.ranks[0].done)  # of all ranks, as nothing is under way
        for number, float_type in enumerate(types):
            for rank, of_rank in zip(self.ranks, mine, strict=True):
                rank.submit(of_rank[number], float_type=float_type, divisor=divisor)
            if not at_once:
                self.wait(before + number + 1)
        self.wait(before + len(types))
        sums = [[array.tobytes() for array in of_rank] for of_rank in mine]
        assert all(other == sums[0] for other in sums), "all ranks have the same"
        return sums[0]

    def wait(self, operations: int) -> None:
        for rank in self.ranks:
            rank.wait(operations)


def values(rank: int, elements: int, float_type: FloatType = FloatType.FLOAT32) -> Array:
    """Normal values of very different sizes, with zeros."""
    rng = np.random.default_rng([rank, elements])
    exact = rng.standard_normal(elements) * np.exp2(rng.integers(-6, 6, elements)) * (rng.random(elements) > 0.05)
    if float_type is FloatType.BFLOAT16:
        bfloat16: Array = (exact.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return bfloat16
    return exact.astype(float_type.dtype)


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, a 1 for each run of the compiled loop, by whomever."""
    runs: list[int] = []
    run = Loop.run

    def counted(*arguments: Any) -> Any:
        runs.append(1)
        return run(*arguments)

    monkeypatch.setattr(Loop, "run", counted)
    return runs


def begun(
    elements: int, lanes: int, slots: int, shards: int, first: int = 0, fmt: str = "nat8"
) -> tuple[Engine, Operation]:
    """An engine, and its operation in place of so many elements, whose scales are agreed on. ``first``: the block that
    each shard begins with."""
    leases = tuple(ShardLease(("127.0.0.1", i), Lease(0, slots), first) for i in range(1, 1 + shards))
    engine = Engine(Epoch(1, 1, 1, job_format(fmt), 1, 0, lanes, 0, leases))
    mine = values(1, elements)
    operation = engine.submit(Request(mine, mine, FloatType.FLOAT32), 0.0)
    operation.agreed[:] = Call(operation.shape.job, mine).agree()[0]
    operation.lacking[Phase.SCALE] = 0
    return engine, operation
