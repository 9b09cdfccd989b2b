"""Going on without the switch, and coming back: `membership.fallback`, with groups and networks that are ours."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.host.core.cluster import Cluster

from inagg_host.config import Config, ConfigError
from inagg_host.core import RanksDisagree
from inagg_host.core.operation import Request, signature_of
from inagg_host.core.reconcile import agree, unfinished
from inagg_host.errors import AllReduceError
from inagg_host.io.futures import CallbackExecutor
from inagg_host.membership import fallback as module
from inagg_host.membership import reconnector
from inagg_host.membership.fallback import REASON, Fallback, _narrow, _widen
from inagg_host.membership.network import Network
from inagg_host.stats import Counters
from inagg_host.task import Task, make_max_task, make_task
from inagg_wire.scale import FloatType

from .groups import Meeting, ThreadGroup, on_all
from .test_salvage import begin, results_to, step, undisturbed

Array = npt.NDArray[Any]
PATIENCE_S = 20.0
WHY = AllReduceError("the switch is on fire")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnector, "RETRY_S", 0.005)


class FakeNetwork(Network):
    """What a fallback uses of one. If it is ``mute``, nothing that is submitted ends."""

    def __init__(self, engine: Any = None, mute: bool = False) -> None:
        shards = [SimpleNamespace(address=("10.0.0.9", 47101)), SimpleNamespace(address=("10.0.0.9", 47102))]
        made: Any = SimpleNamespace(scales=56, epoch=SimpleNamespace(shards=shards))
        self.engine = engine or made
        self.failure, self.mute = None, mute
        self.closed, self.ended = threading.Event(), ""
        self.tried: list[int] = []

    def submit(self, task: Task) -> None:
        self.tried.append(task.values.size)
        if not self.mute:
            task.work.set_result(task.target)

    def close(self, reason: str = "", end: bool = False) -> list[Task]:
        self.closed.set()
        self.ended = reason if end else ""
        return []


def config(rank: int, workers: int) -> Config:
    """As of a job that nobody needs to find."""
    return Config(switch="127.0.0.1:1", job="sums", rank=rank, workers=workers)


@dataclass
class Rank:
    """One rank's fallback, and what it called."""

    fallback: Fallback
    counters: Counters
    back: list[tuple[Network, list[Task]]] = field(default_factory=list)
    came_back: threading.Event = field(default_factory=threading.Event)

    def sum(self, values: Array, **options: Any) -> Task:
        task = make_task(values, None, options.get("float_type"), options.get("divisor", 1))
        self.fallback.submit(task)
        return task


def never(stop: threading.Event) -> Network:
    """The switch stays away."""
    raise AllReduceError("still on fire")


@contextmanager
def ranks(
    groups: list[ThreadGroup],
    join: Callable[[threading.Event], Network] = never,
    left: Callable[[int], tuple[Network | None, list[Task], Exception]] = lambda rank: (None, [], WHY),
) -> Iterator[list[Rank]]:
    """Fallbacks of all ranks, that have begun with what ``left`` says."""
    pool = CallbackExecutor()
    made: list[Rank] = []
    for rank, group in enumerate(groups):

        def on_back(network: Network, tasks: list[Task], rank: int = rank) -> None:
            made[rank].back.append((network, tasks))
            made[rank].came_back.set()

        def finish(task: Task, failure: AllReduceError | None) -> None:
            task.work.finish(failure or task.target, pool)

        counters = Counters()
        made.append(Rank(Fallback(group, config(rank, len(groups)), counters, join, on_back, finish), counters))
    for number, one in enumerate(made):
        one.fallback.start(*left(number))
    try:
        yield made
    finally:
        with ThreadPoolExecutor(len(made)) as closing:  # each may wait for another
            list(closing.map(lambda rank: rank.fallback.close(), made))
        pool.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name in ("inagg-fallback", "inagg-reconnect")]


# --- sums ---


def test_tasks_are_summed_on_the_inner_group_in_order() -> None:
    with ranks(Meeting(3).groups()) as made:
        tasks = [[rank.sum(np.full(5 + i, 1.0 + r, np.float32)) for i in range(4)] for r, rank in enumerate(made)]
        for of_rank in tasks:
            for i, task in enumerate(of_rank):
                assert task.work.result(PATIENCE_S).tolist() == [6.0] * (5 + i)


@pytest.mark.parametrize("float_type", FloatType)
def test_every_float_type_is_summed(float_type: FloatType) -> None:
    one = np.array([0x3F80], np.uint16) if float_type is FloatType.BFLOAT16 else np.ones(1, float_type.dtype)
    four = np.array([0x4080], np.uint16) if float_type is FloatType.BFLOAT16 else np.full(1, 4, float_type.dtype)
    with ranks(Meeting(4).groups()) as made:
        tasks = [rank.sum(one.copy(), float_type=float_type) for rank in made]
        assert [task.work.result(PATIENCE_S).tobytes() for task in tasks] == [four.tobytes()] * 4


def test_a_mean_is_divided() -> None:
    with ranks(Meeting(2).groups()) as made:
        tasks = [rank.sum(np.full(3, 1.0 + 2 * r, np.float32), divisor=2) for r, rank in enumerate(made)]
        assert [task.work.result(PATIENCE_S).tolist() for task in tasks] == [[2.0] * 3] * 2


def test_each_sum_is_counted_under_the_reason_code() -> None:
    with ranks(Meeting(2).groups()) as made:
        for _ in range(3):
            tasks = [rank.sum(np.ones(2, np.float32)) for rank in made]
            for task in tasks:
                task.work.result(PATIENCE_S)
        assert [rank.counters.inner for rank in made] == [{REASON: 3}] * 2


def test_one_loud_line_has_the_reason_code_and_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "inagg"), ranks(Meeting(1).groups()) as (rank,):
        for _ in range(3):
            rank.sum(np.ones(2, np.float32)).work.result(PATIENCE_S)
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    where = "rank 0 of job 'sums' goes on without the switch, on the inner group"
    assert loud == [f"[{REASON}] {where}: the switch is on fire"]


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even(x: float) -> None:
    (bits,) = _narrow(np.array([x], np.float32), FloatType.BFLOAT16).tolist()
    if np.isinf(x):
        assert (bits << 16) == int(np.float32(x).view(np.uint32))
        return
    magnitude = bits & 0x7FFF

    def value(of: int) -> Fraction:
        # What would come after the largest, for the sake of rounding to infinity.
        return Fraction(2) ** 128 if of == 0x7F80 else Fraction(float(np.uint32(of << 16).view(np.float32)))

    error = abs(value(magnitude) - abs(Fraction(x)))
    for other in (magnitude - 1, magnitude + 1):
        if 0 <= other <= 0x7F80:
            theirs = abs(value(other) - abs(Fraction(x)))
            assert error < theirs or (error == theirs and magnitude % 2 == 0)


def test_every_bfloat16_survives_widening() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    back = _narrow(_widen(every, FloatType.BFLOAT16), FloatType.BFLOAT16)
    numbers = (every & 0x7FFF) <= 0x7F80
    assert (back[numbers] == every[numbers]).all()
    assert (back[~numbers] == 0x7FC0).all()


# --- what the network had begun ---


def test_what_was_begun_is_finished_from_the_same_tensors() -> None:
    """Sums that one rank had are on all ranks, to the bit; the others are summed on the inner group."""
    cluster, arrays = begin(2, [400, 70])
    given_values = [[array.copy() for array in of_rank] for of_rank in arrays]
    step(cluster, 3)
    step(cluster, 1, results_to(1))
    pending = np.repeat(unfinished(cluster.engines[0])[0][1], 16)[:400]
    assert pending.any()
    assert not pending.all()
    tasks = [[make_task(array, None, None, 1) for array in of_rank] for of_rank in arrays]

    def left(rank: int) -> tuple[Network | None, list[Task], Exception]:
        return FakeNetwork(cluster.engines[rank]), tasks[rank], WHY

    with ranks(Meeting(2).groups(), left=left):
        for of_rank in tasks:
            for task in of_rank:
                task.work.result(PATIENCE_S)
    by_switch, exact = undisturbed(2, [400, 70]), [a + b for a, b in zip(*given_values, strict=True)]
    for first, second in arrays:
        assert first.tobytes() == np.where(pending, exact[0], by_switch[0]).tobytes()
        assert second.tobytes() == exact[1].tobytes()


def begin_noting(workers: int, elements: int) -> tuple[Cluster, list[Array], list[Array]]:
    """Ranks that have submitted a tensor, in place, and note what they contribute: the tensors, and the notes."""
    cluster, _ = begin(workers, [])
    arrays = [np.random.default_rng(rank).normal(size=elements).astype(np.float32) for rank in range(workers)]
    owns = [np.full_like(array, np.nan) for array in arrays]
    for engine, array, own in zip(cluster.engines, arrays, owns, strict=True):
        engine.submit(Request(array, array, FloatType.FLOAT32, 1, own), cluster.now)
    return cluster, arrays, owns


def test_a_rank_has_contributed_its_codes_where_the_network_has_summed_and_its_values_elsewhere() -> None:
    """Error feedback keeps the difference to its values: of a block that the inner group sums, nothing is lost."""
    undisturbed_ranks, _, codes = begin_noting(2, 400)
    undisturbed_ranks.run()
    cluster, arrays, owns = begin_noting(2, 400)
    values = [array.copy() for array in arrays]
    step(cluster, 3)
    step(cluster, 1, results_to(1))
    blocks = unfinished(cluster.engines[0])[0][1]
    assert not blocks.all()
    pending = np.repeat(blocks, 16)[:400]
    sent = pending & ~np.isnan(owns[0])
    assert (owns[0][sent] != values[0][sent]).any(), "some was sent, as codes, and has no sum yet"
    tasks = [make_task(array, None, None, 1, own) for array, own in zip(arrays, owns, strict=True)]
    later, later_owns = np.arange(5, dtype=np.float32), [np.full(5, np.nan, np.float32) for _ in range(2)]

    def left(rank: int) -> tuple[Network | None, list[Task], Exception]:
        return FakeNetwork(cluster.engines[rank]), [tasks[rank]], WHY

    with ranks(Meeting(2).groups(), left=left) as made:
        for one, own in zip(made, later_owns, strict=True):
            tasks.append(make_task(later.copy(), None, None, 1, own))
            one.fallback.submit(tasks[-1])
        for task in tasks:
            task.work.result(PATIENCE_S)
    for rank in range(2):
        assert owns[rank].tobytes() == np.where(pending, values[rank], codes[rank]).tobytes()
        assert later_owns[rank].tobytes() == later.tobytes()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_reduce_scatter_that_was_begun_is_finished(in_place: bool) -> None:
    """Sums that a rank had stay, those of pieces that do not fill their blocks among them; and later ones."""
    cluster, _ = begin(2, [])
    given = [np.random.default_rng(rank).normal(size=2 * 135).astype(np.float32) for rank in range(2)]
    arrays = [array.copy() for array in given]
    outs = [a[135 * r : 135 * r + 135] if in_place else np.zeros(135, np.float32) for r, a in enumerate(arrays)]
    for rank, engine in enumerate(cluster.engines):
        engine.submit(Request(arrays[rank], outs[rank], FloatType.FLOAT32, scatters=True), cluster.now)
    step(cluster, 4)
    step(cluster, 1, results_to(1))
    blocks = unfinished(cluster.engines[0])[0][1]
    assert blocks.any()
    assert not blocks.all()
    done = [out.copy() for out in outs]
    tasks = [[make_task(arrays[rank], outs[rank], pieces=2, rank=rank)] for rank in range(2)]

    def left(rank: int) -> tuple[Network | None, list[Task], Exception]:
        return FakeNetwork(cluster.engines[rank]), tasks[rank], WHY

    later = [np.arange(6, dtype=np.float32) + rank for rank in range(2)]
    with ranks(Meeting(2).groups(), left=left) as made:
        for rank, one in enumerate(made):
            tasks[rank].append(make_task(later[rank], np.zeros(3, np.float32), pieces=2, rank=rank))
            one.fallback.submit(tasks[rank][1])
        for of_rank in tasks:
            for task in of_rank:
                task.work.result(PATIENCE_S)
    exact, pending = given[0] + given[1], np.repeat(blocks.reshape(2, -1), 16, axis=1)[:, :135]
    for rank in range(2):
        own = slice(135 * rank, 135 * rank + 135)
        assert outs[rank][pending[rank]].tobytes() == exact[own][pending[rank]].tobytes()
        np.testing.assert_allclose(outs[rank], exact[own], atol=2 * np.abs(exact).max())  # nat8 rounds
        if rank == 0:
            assert outs[rank][~pending[rank]].tobytes() == done[rank][~pending[rank]].tobytes()
        assert tasks[rank][1].target.tolist() == [[1, 3, 5], [7, 9, 11]][rank]


def test_a_rank_that_was_not_in_the_network_is_not_asked_for_its_results() -> None:
    """It could not join when the others could: then nothing was summed, and they find that out."""
    cluster, arrays = begin(1, [40])
    tasks = [make_task(arrays[0][0], None, None, 1), make_task(np.ones(40, np.float32), None, None, 1)]
    expected = arrays[0][0] + 1
    networks: list[Network | None] = [FakeNetwork(cluster.engines[0]), None]
    groups = Meeting(2).groups()
    with ranks(groups, left=lambda rank: (networks[rank], [tasks[rank]], WHY)):
        assert [task.work.result(PATIENCE_S).tolist() for task in tasks] == [expected.tolist()] * 2
    assert groups[0].calls == groups[1].calls


# --- what cannot go on ---


def test_ranks_that_reduce_different_things_get_an_error_and_no_sum() -> None:
    """No group can sum what does not match. One rank has found it out; the other one was only told that all is over."""
    disagreement = AllReduceError("another rank reduces something else")
    disagreement.__cause__ = RanksDisagree()
    sizes, whys = (3, 5), (disagreement, AllReduceError("the job is over"))
    tasks = [make_task(np.ones(size, np.float32), None, None, 1) for size in sizes]
    groups = Meeting(2).groups()
    with ranks(groups, left=lambda rank: (FakeNetwork(), [tasks[rank]], whys[rank])):
        for task in tasks:
            with pytest.raises(AllReduceError, match=r"^another rank reduces something else$"):
                task.work.result(PATIENCE_S)
    assert [group.calls for group in groups] == [["gather"]] * 2


@pytest.mark.parametrize(
    "changes",
    [{"tag": 1}, {"values": np.ones(4, np.float32)}, {"divisor": 2}, {"float_type": None}, {"scatters": True}],
)
def test_ranks_whose_next_task_is_not_the_same_get_an_error_and_no_sum(changes: dict[str, Any]) -> None:
    """As where one has left a tensor out. What comes later is then another one, too."""
    with ranks(Meeting(3).groups()) as made:
        tasks = [make_task(np.ones(3, np.float32), None) for _ in made]
        for name, value in changes.items():
            setattr(tasks[1], name, value)
        for rank, task in zip(made, tasks, strict=True):
            rank.fallback.submit(task)
        for task in [*tasks, *(rank.sum(np.ones(3, np.float32)) for rank in made)]:
            with pytest.raises(AllReduceError, match="another rank reduces something else than this one's"):
                task.work.result(PATIENCE_S)
        assert [task.out.tolist() for task in tasks] == [[1.0] * 3] * 3


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=9), st.integers(0, 2**64 - 1), st.integers(0, 63),
    st.lists(st.booleans(), min_size=9, max_size=9),
)  # fmt: skip
def test_ranks_agree_if_and_only_if_all_their_signatures_are_the_same(
    signatures: list[int], one: int, bit: int, ready: list[bool]
) -> None:
    def agreed(values: list[int]) -> set[int | None]:
        groups = Meeting(len(values)).groups()
        rows = [value.to_bytes(8, "big") for value in values]
        return set(on_all(groups, lambda rank, group: agree(group, len(values), ready[rank], rows[rank])))

    count = len(signatures)
    assert agreed(signatures) == ({None} if len(set(signatures)) > 1 else {sum(ready[:count])})
    assert agreed([one] * count) == {sum(ready[:count])}
    assert agreed([one] * (count - 1) + [one ^ 1 << bit]) == {None}


def test_when_the_inner_group_fails_too_both_reasons_are_told() -> None:
    meeting = Meeting(2)
    with ranks(meeting.groups()) as made:
        for task in [rank.sum(np.ones(1, np.float32)) for rank in made]:
            task.work.result(PATIENCE_S)
        meeting.end()
        for _ in range(2):  # what comes later fails as well
            for task in [rank.sum(np.ones(1, np.float32)) for rank in made]:
                with pytest.raises(AllReduceError, match="on fire; and the inner group cannot be used either") as told:
                    task.work.result(PATIENCE_S)
                assert isinstance(told.value.__cause__, threading.BrokenBarrierError)


def test_nobody_comes_back_once_the_inner_group_has_failed() -> None:
    meeting, joined = Meeting(1), threading.Event()
    meeting.end()

    def join(stop: threading.Event) -> Network:
        joined.set()
        raise AllReduceError("still on fire")

    with ranks(meeting.groups(), join) as (rank,):
        with pytest.raises(AllReduceError):
            rank.sum(np.ones(1, np.float32)).work.result(PATIENCE_S)
        assert rank.fallback._reconnector._thread is None
    assert not joined.is_set()


def test_nobody_tries_to_come_back_any_more_when_the_inner_group_fails_later() -> None:
    meeting, tried = Meeting(1), threading.Event()

    def join(stop: threading.Event) -> Network:
        tried.set()
        raise AllReduceError("still on fire")

    with ranks(meeting.groups(), join) as (rank,):
        assert tried.wait(PATIENCE_S)
        meeting.end()
        with pytest.raises(AllReduceError):
            rank.sum(np.ones(1, np.float32)).work.result(PATIENCE_S)
        attempts = rank.fallback._reconnector._thread
        assert attempts is not None
        assert not attempts.is_alive()


# --- coming back ---


def test_a_file_of_keys_that_is_just_being_replaced_ends_no_attempts() -> None:
    network, tried = FakeNetwork(), list[threading.Event]()

    def join(stop: threading.Event) -> Network:
        tried.append(stop)
        if len(tried) == 1:
            raise ConfigError("cannot read the certificate")
        return network

    with ranks(Meeting(1).groups(), join) as (rank,):
        wait_for(lambda: rank.fallback._reconnector._network is not None)
    assert network.closed.is_set()


def test_when_all_are_back_the_network_gets_what_is_left_in_order() -> None:
    there = threading.Event()

    def join(stop: threading.Event) -> Network:
        there.wait(PATIENCE_S)
        return FakeNetwork()

    with ranks(Meeting(2).groups(), join) as made:
        for task in [rank.sum(np.ones(1, np.float32)) for rank in made]:
            assert task.work.result(PATIENCE_S).tolist() == [2.0]
        there.set()
        wait_for(lambda: all(rank.fallback._reconnector._network is not None for rank in made))
        tasks = [[rank.sum(np.ones(1, np.float32)) for _ in range(3)] for rank in made]
        for rank, of_rank in zip(made, tasks, strict=True):
            assert rank.came_back.wait(PATIENCE_S)
            ((_, handed),) = rank.back
            assert [*handed, *rank.fallback.drain()] == of_rank
            assert not any(task.work.done() for task in of_rank)


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_as_long_as_one_is_not_back_all_stay_on_the_inner_group() -> None:
    count = iter(range(1_000_000))

    def join(stop: threading.Event) -> Network:
        if next(count):
            raise AllReduceError("still on fire")
        return FakeNetwork()  # the first one to try

    with ranks(Meeting(2).groups(), join) as made:
        wait_for(lambda: any(rank.fallback._reconnector._network is not None for rank in made))
        for _ in range(3):
            for task in [rank.sum(np.ones(1, np.float32)) for rank in made]:
                assert task.work.result(PATIENCE_S).tolist() == [2.0]
        network = next(n for rank in made if (n := rank.fallback._reconnector._network) is not None)
        assert not any(rank.back for rank in made)
    assert isinstance(network, FakeNetwork)
    assert network.closed.is_set(), "nobody else knows of it"


def test_a_network_that_breaks_before_all_are_back_is_closed_and_joined_again() -> None:
    networks: list[FakeNetwork] = []

    def join(stop: threading.Event) -> Network:
        networks.append(FakeNetwork())
        return networks[-1]

    with ranks(Meeting(1).groups(), join) as (rank,):
        wait_for(lambda: rank.fallback._reconnector._network is not None)
        networks[0].failure = AllReduceError("broke at once")
        assert rank.sum(np.ones(1, np.float32)).work.result(PATIENCE_S).tolist() == [1.0]
        assert networks[0].closed.is_set()
        wait_for(lambda: rank.fallback._reconnector._network is not None)
        rank.sum(np.ones(1, np.float32))
        assert rank.came_back.wait(PATIENCE_S)
        assert rank.back[0][0] is networks[1]


def test_where_no_datagram_passes_all_stay_on_the_inner_group_and_try_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconnector, "TRIAL_S", 0.05)
    networks = [FakeNetwork(mute=True), FakeNetwork(mute=True), FakeNetwork()]
    coming = iter(networks)
    with ranks(Meeting(1).groups(), lambda _: next(coming)) as (rank,):
        wait_for(lambda: bool(networks[0].tried))
        assert rank.sum(np.ones(1, np.float32)).work.result(PATIENCE_S).tolist() == [1.0], "meanwhile"
        wait_for(lambda: rank.fallback._reconnector._network is not None)
        rank.sum(np.ones(1, np.float32))
        assert rank.came_back.wait(PATIENCE_S)
    assert rank.back[0][0] is networks[2]
    assert [network.tried for network in networks] == [[2 * 56]] * 3, "a block for each shard"
    why = (
        "rank 0 of job 'sums' has joined again, and nothing that it sends to UDP 10.0.0.9:47101 and UDP "
        "10.0.0.9:47102 is answered"
    )
    assert [network.ended for network in networks] == [why, why, ""]
    loud = [record.message for record in caplog.records if "joined again" in record.message]
    assert loud == [f"{why}: the inner group goes on"]


def test_a_network_that_breaks_while_it_is_tried_is_joined_again() -> None:
    broken = FakeNetwork(mute=True)
    broken.failure = AllReduceError("gone again")
    coming = iter([broken, FakeNetwork()])
    with ranks(Meeting(1).groups(), lambda _: next(coming)) as (rank,):
        wait_for(lambda: rank.fallback._reconnector._network is not None)
    assert (broken.closed.is_set(), broken.ended) == (True, "")


# --- closing ---


def test_closing_stops_a_trial() -> None:
    network = FakeNetwork(mute=True)
    with ranks(Meeting(1).groups(), lambda _: network):
        wait_for(lambda: bool(network.tried))
    assert (network.closed.is_set(), network.ended) == (True, "")


def test_closing_stops_a_join_that_waits_for_others() -> None:
    """`ranks` looks that no thread is left."""
    joining = threading.Event()

    def join(stop: threading.Event) -> Network:
        joining.set()
        assert stop.wait(PATIENCE_S)
        raise AllReduceError("closed while joining")

    with ranks(Meeting(1).groups(), join):
        assert joining.wait(PATIENCE_S)


def test_a_network_that_came_when_all_was_closed_is_closed() -> None:
    network = FakeNetwork()

    def join(stop: threading.Event) -> Network:
        assert stop.wait(PATIENCE_S)
        return network

    with ranks(Meeting(1).groups(), join) as (rank,):
        wait_for(lambda: rank.fallback._reconnector._thread is not None)
        time.sleep(0.05)
    assert network.closed.is_set()


def test_closing_does_not_wait_for_an_inner_group_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank sleeps, and somebody presses Ctrl-C. What comes of it later is not written any more."""
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    meeting = Meeting(2)
    mine, other = meeting.groups()
    pool = CallbackExecutor()
    fallback = Fallback(
        mine,
        config(0, 2),
        Counters(),
        never,
        lambda *_: None,
        lambda task, failure: task.work.finish(failure or task.target, pool),
    )
    fallback.start(None, [], WHY)
    meeting.exchange(1, "gather", b"\0")
    values = np.ones(4, np.float32)
    tasks = [make_task(values, None, None, 1), make_task(np.ones(4, np.float32), None, None, 1)]
    for task in tasks:
        fallback.submit(task)
    agree(other, 2, False, signature_of(tasks[0]))
    wait_for(lambda: mine.calls[-1] == "all_reduce of 4 float32")
    fallback.close()
    for task in tasks:
        with pytest.raises(AllReduceError, match="closed before"):
            task.work.result(PATIENCE_S)
    other.all_reduce(np.ones(4, np.float32))
    fallback._thread.join(PATIENCE_S)
    assert not fallback._thread.is_alive()
    assert values.tolist() == [1.0] * 4
    pool.shutdown()


def test_maxima_that_come_after_it_was_closed_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    meeting, pool = Meeting(2), CallbackExecutor()
    mine, other = meeting.groups()

    def finish(task: Task, failure: AllReduceError | None) -> None:
        task.work.finish(failure or task.target, pool)

    fallback = Fallback(mine, config(0, 2), Counters(), never, lambda *_: None, finish)
    fallback.start(None, [], WHY)
    other.gather(b"\0")
    values = np.ones(4, np.uint8)
    task = make_max_task(values, None)
    fallback.submit(task)
    agree(other, 2, False, signature_of(task))
    wait_for(lambda: mine.calls.count("gather") == 2)
    fallback.close()
    with pytest.raises(AllReduceError, match="closed before"):
        task.work.result(PATIENCE_S)
    other.gather(b"\5" * 4)
    fallback._thread.join(PATIENCE_S)
    assert not fallback._thread.is_alive()
    assert values.tolist() == [1] * 4
    pool.shutdown()


def test_however_often_nothing_has_passed_it_is_tried_again_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnector, "TRIAL_S", 0.0)
    attempts = reconnector.Reconnector(never, "rank 0")
    assert not any(attempts._passes(FakeNetwork(mute=True)) for _ in range(20))
    assert attempts._pause_s == reconnector.TRIALS_AFTER_MOST_S


def made_alone(finish: Callable[[Task, AllReduceError | None], None]) -> Fallback:
    """One that is not started."""
    (group,) = Meeting(1).groups()
    return Fallback(group, config(0, 1), Counters(), never, lambda *_: None, finish)


def test_what_another_takes_meanwhile_is_not_waited_for() -> None:
    """The fallback's thread takes the last of the queue while it is drained."""

    class Quicker(queue.SimpleQueue[Task | None]):
        def empty(self) -> bool:
            is_empty = super().empty()
            if not is_empty:
                super().get()
            return is_empty

        def get_nowait(self) -> Task | None:
            if not super().empty():
                super().get()
            return super().get_nowait()

    fallback = made_alone(lambda *_: None)
    fallback._queue = Quicker()
    fallback.submit(make_task(np.ones(1, np.float32), None))
    drained = list[list[Task]]()
    drains = threading.Thread(target=lambda: drained.append(fallback.drain()), daemon=True)
    drains.start()
    drains.join(PATIENCE_S)
    assert drained == [[]]


def test_what_is_taken_up_just_when_closing_gives_up_fails_too() -> None:
    """It is not among what `close` has failed."""
    finished = list[Task]()
    fallback = made_alone(lambda task, failure: finished.append(task))
    tasks = [make_task(np.ones(1, np.float32), None) for _ in range(2)]
    fallback._abandoned = tasks[:1]
    for task in tasks:
        fallback._end(task, AllReduceError("closed"))
    assert finished == tasks[1:]


def test_who_gets_no_thread_to_come_back_stays_on_the_inner_group(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "inagg-reconnect":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with ranks(Meeting(2).groups()) as made:
        for task in [rank.sum(np.ones(1, np.float32)) for rank in made]:
            assert task.work.result(PATIENCE_S).tolist() == [2.0]


def test_what_is_not_begun_when_it_is_closed_fails() -> None:
    meeting = Meeting(2)
    with ranks(meeting.groups()) as made:
        tasks = [make_task(np.ones(1, np.float32), None, None, 1) for _ in range(2)]
        for rank, task in zip(made, tasks, strict=True):
            rank.fallback._closed.set()
            rank.fallback.submit(task)
        for task in tasks:
            with pytest.raises(AllReduceError, match="closed before the sums were there"):
                task.work.result(PATIENCE_S)
