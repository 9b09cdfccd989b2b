"""Groups whose members change: the cases of torch's own tests of its fault tolerance, over the switch, and more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import LARGE, equal
from tests.host.torch.world import World
from torch._C._distributed_c10d import HashStore

from inagg_host.config import ConfigError
from inagg_host.errors import AllReduceError
from inagg_host.torch import reconfigurable
from inagg_host.torch.reconfigurable import ReconfigurableGroup

TIMEOUT = timedelta(seconds=60)
SHORT = timedelta(seconds=3)
Parts = Sequence[Sequence[int]]
"""Which ranks of the world are members of one group each."""

native = pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="torch has this from 2.15 on")


@pytest.fixture(scope="module")
def three(make_world: Callable[..., World]) -> Iterator[World]:
    with make_world(3) as world:
        yield world


def new_group(timeout: timedelta = TIMEOUT) -> ReconfigurableGroup:
    return ReconfigurableGroup(timeout, {"window": 16})


def handles_of(group: ReconfigurableGroup) -> list[str]:
    """Of all ranks of the world."""
    handles: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(handles, group.get_reconfigure_handle())
    return handles


def reconfigure(
    group: ReconfigurableGroup, uuid: int, handles: list[str] | set[str], timeout: timedelta | None = None
) -> None:
    assert group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout)).wait()


def sums(group: ReconfigurableGroup) -> tuple[int, int, float, float, int]:
    """Rank, size, a sum by the switch and one by the inner group of 1, 2, 4, ..., and how many the switch did."""
    large, small = torch.full((LARGE,), 2.0 ** group.rank()), torch.tensor([2.0 ** group.rank()])
    group.allreduce([large]).wait()
    group.allreduce([small]).wait()
    return group.rank(), group.size(), float(large[-1]), float(small), group.counters.operations


def walk(steps: Sequence[Parts]) -> list[tuple[int, int, float, float, int] | None]:
    """From one set of members to the next; for each what `sums` returns, or None for who is no member."""
    rank, group, told = dist.get_rank(), new_group(), []
    for uuid, parts in enumerate(steps):
        handles = handles_of(group)
        mine = [part for part in parts if rank in part]
        if mine:
            # Groups that are apart need names that differ.
            reconfigure(group, 10 * uuid + mine[0][0], [handles[r] for r in mine[0]])
        told.append(sums(group) if mine else None)
    group.shutdown()
    return told


WALKS: dict[str, list[Parts]] = {
    "all": [[(0, 1, 2)]],
    "in another order": [[(2, 0, 1)]],
    "the last one leaves": [[(0, 1, 2)], [(0, 1)]],
    "the middle one leaves": [[(0, 1, 2)], [(0, 2)]],
    "down to one each, up, and down": [[(0,), (1,), (2,)], [(0, 1, 2)], [(0,), (1,), (2,)]],
    "the same again": [[(0, 1, 2)], [(0, 1, 2)]],
    "some come late": [[(0,)], [(0, 1, 2)]],
    "two groups become one": [[(0,), (1, 2)], [(0, 1, 2)]],
}


@pytest.mark.parametrize("steps", WALKS.values(), ids=WALKS)
def test_members_change(three: World, steps: list[Parts]) -> None:
    for rank, told in enumerate(three.run(walk, steps)):
        for parts, result in zip(steps, told, strict=True):
            part = next((part for part in parts if rank in part), None)
            if part is None:
                assert result is None
            else:
                whole = 2.0 ** len(part) - 1
                assert result == (part.index(rank), len(part), whole, whole, int(len(part) > 1))


def point_to_point() -> list[float]:
    group = new_group()
    reconfigure(group, 1, handles_of(group))
    rank, size = group.rank(), group.size()
    received, sent = torch.zeros(4), torch.full((4,), float(rank))
    works = [group.send([sent], (rank + 1) % size, 0), group.recv([received], (rank - 1) % size, 0)]
    for work in works:
        work.wait()
    told = torch.full((4,), 42.0 if rank == 0 else 0.0)
    options = dist.BroadcastOptions()
    options.rootRank = 0
    group.broadcast([told], options).wait()
    group.shutdown()
    return [float(received[0]) - (rank - 1) % size, float(told[0])]


def test_members_send_receive_and_broadcast(three: World) -> None:
    assert equal(three.run(point_to_point)) == [0.0, 42.0]


def a_set_of_handles() -> tuple[int, int]:
    group = new_group()
    handles = handles_of(group)
    reconfigure(group, 1, set(handles))
    rank = group.rank()
    group.shutdown()
    return rank, sorted(handles).index(handles[dist.get_rank()])


def test_of_a_set_the_alphabet_gives_the_ranks(three: World) -> None:
    assert all(rank == expected for rank, expected in three.run(a_set_of_handles))


def after_abort() -> tuple[bool, tuple[int, int, float, float, int]]:
    group = new_group()
    handles = handles_of(group)
    reconfigure(group, 1, handles)
    sums(group)
    dist.barrier()
    group.abort()
    failed = group.get_error() is not None
    reconfigure(group, 2, handles)
    result = sums(group)
    group.shutdown()
    return failed, result[1:]  # type: ignore[return-value]


def test_after_an_abort_the_members_come_together_again(three: World) -> None:
    assert equal(three.run(after_abort)) == (True, (3, 7.0, 7.0, 1))


def after_a_timeout() -> tuple[bool, tuple[float, ...]]:
    """Rank 0 takes no part; the others hear of it, and all go on with new members."""
    group = new_group(SHORT)
    handles, failed = handles_of(group), False
    reconfigure(group, 1, handles, TIMEOUT)
    sums(group)
    if dist.get_rank():
        try:
            group.allreduce([torch.ones(LARGE)]).wait()
        except RuntimeError:
            failed = True
    dist.barrier()
    reconfigure(group, 2, handles, TIMEOUT)
    result = sums(group)
    group.shutdown()
    return failed == (dist.get_rank() != 0), result[1:]


def test_after_a_timeout_the_members_come_together_again(three: World) -> None:
    assert equal(three.run(after_a_timeout)) == (True, (3, 7.0, 7.0, 1))


def one_who_does_not_come() -> str:
    group = new_group()
    handles = handles_of(group)
    told = ""
    if dist.get_rank() != 2:
        try:
            reconfigure(group, 1, handles, SHORT)
        except AllReduceError as error:
            told = str(error)
        with pytest.raises(RuntimeError, match="no members"):
            group.allreduce([torch.ones(LARGE)])
    group.shutdown()
    return told


def test_who_does_not_come_is_named_in_time(three: World) -> None:
    first, second, third = three.run(one_who_does_not_come)
    assert "rank 2" in first
    assert second
    assert third == ""


# --- one process ---


def options(uuid: int, handles: list[str]) -> Any:
    return SimpleNamespace(uuid=uuid, handles=handles, timeout=None)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("INAGG_SWITCH", "127.0.0.1:1")
    group = new_group()
    yield group
    group.shutdown()


def test_without_members_nothing_is_summed(alone: ReconfigurableGroup) -> None:
    for name in ("allreduce", "broadcast"):
        with pytest.raises(RuntimeError, match="has no members: call"):
            getattr(alone, name)([torch.ones(1)])
    assert alone.get_error() is None


def test_a_uuid_serves_once(alone: ReconfigurableGroup) -> None:
    mine = [alone.get_reconfigure_handle()]
    alone.reconfigure(options(7, mine))
    with pytest.raises(RuntimeError, match="uuid 7 was already used"):
        alone.reconfigure(options(7, mine))
    assert alone.size() == 1
    alone.allreduce([torch.ones(1)]).wait()


def test_sums_of_the_inner_group_are_counted_anew_with_each_set_of_members(alone: ReconfigurableGroup) -> None:
    for uuid, sums_made in ((1, 2), (2, 1)):
        alone.reconfigure(options(uuid, [alone.get_reconfigure_handle()]))
        for _ in range(sums_made):
            alone.allreduce([torch.ones(1)]).wait()
        assert sum(alone.counters.inner.values()) == sums_made


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([], "none of this process"),
        (["gloo:0:host"], "no handle of this backend"),
        (["inagg:a:port:host"], "'inagg:a:port:host' is no handle of this backend"),
        (["inagg:a:1:h", "inagg:a:1:h"], "twice"),
    ],
)
def test_handles_that_cannot_be_change_nothing(alone: ReconfigurableGroup, others: list[str], why: str) -> None:
    alone.reconfigure(options(1, [alone.get_reconfigure_handle()]))
    with pytest.raises(ValueError, match=why):
        alone.reconfigure(options(2, others))
    alone.allreduce([torch.ones(1)]).wait()


def test_the_handle_needs_a_way_to_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INAGG_SWITCH", raising=False)
    group = new_group()
    with pytest.raises(ConfigError, match="INAGG_SWITCH"):
        group.get_reconfigure_handle()
    group.shutdown()


# --- what it does with its members, in order ---


class Meetings:
    """Stands in for `come_together`, in a group of one: ``events`` is what was done, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("INAGG_SWITCH", "127.0.0.1:1")
        monkeypatch.setattr(reconfigurable, "come_together", self.meet)
        self.events: list[str] = []
        self.timeouts: list[tuple[timedelta, timedelta]] = []
        """Of operations, and of the meeting."""
        self.options: dict[str, Any] = {}
        self.found: list[bool] = []
        """Whether something stood in the store that members share, each time."""

    def meet(
        self, store: Any, rank: int, size: int, timeout: timedelta, label: str, options: dict[str, Any], join: bool,
        limit: timedelta,
    ) -> tuple[Any, Any]:  # fmt: skip
        assert join, "members that are not there should be missed now, and not by the first sum"
        self.events.append(f"meet {label}")
        self.timeouts.append((timeout, limit))
        self.options = options
        self.found.append(store.check(["told"]))
        store.set("told", label)

        def note(what: str) -> Callable[..., None]:
            return lambda *_: self.events.append(f"{what} {label}")

        inner = SimpleNamespace(
            shutdown=note("end inner group of"), abort=note("abort inner group of"), set_timeout=note("limit")
        )
        return inner, SimpleNamespace(
            inner=Counter(), close=note("leave"), abort=note("abort"), set_timeout=note("limit of sums")
        )


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> Meetings:
    return Meetings(monkeypatch)


def meet(group: ReconfigurableGroup, uuid: int, timeout: timedelta | None = None) -> None:
    reconfigure(group, uuid, [group.get_reconfigure_handle()], timeout)


def test_members_of_before_are_left_before_others_are_met_and_at_the_end(meetings: Meetings) -> None:
    """Else their job would hold its slots at the switch, and beat, for as long as the process lives."""
    group = new_group()
    meet(group, 1)
    meet(group, 2)
    group.shutdown()
    assert meetings.events == [
        "meet uuid-1", "leave uuid-1", "end inner group of uuid-1",
        "meet uuid-2", "leave uuid-2", "end inner group of uuid-2",
    ]  # fmt: skip


def test_what_members_of_before_told_each_other_is_not_found_by_the_next(meetings: Meetings) -> None:
    """Where they met at the same one: they would take its old addresses for those of now."""
    group = new_group()
    meet(group, 1)
    meet(group, 2)
    group.shutdown()
    assert meetings.found == [False, False]


def test_members_are_left_once(meetings: Meetings) -> None:
    group = new_group()
    meet(group, 1)
    group.shutdown()
    group.shutdown()
    group.abort()
    assert meetings.events == ["meet uuid-1", "leave uuid-1", "end inner group of uuid-1"]


def test_members_that_did_not_come_are_not_left(meetings: Meetings, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any) -> Any:
        raise AllReduceError("rank 1 did not come")

    group = new_group()
    meet(group, 1)
    meetings.events.clear()
    monkeypatch.setattr(reconfigurable, "come_together", nobody)
    with pytest.raises(AllReduceError, match="rank 1 did not come"):
        meet(group, 2)
    group.shutdown()
    assert meetings.events == ["leave uuid-1", "end inner group of uuid-1"]


def test_a_store_that_does_not_answer_is_rank_0_that_went_away(
    meetings: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise dist.DistNetworkError("reset by peer")

    group = new_group()
    monkeypatch.setattr(reconfigurable, "come_together", broken)
    with pytest.raises(AllReduceError, match=r"rank 0 of the new members went away, .*: reset by peer"):
        meet(group, 1)
    group.shutdown()


def test_members_wait_for_each_other_as_long_as_is_said_and_for_sums_as_long_as_the_group_says(
    meetings: Meetings,
) -> None:
    group = new_group(TIMEOUT)
    meet(group, 1, SHORT)
    meet(group, 2)
    group.set_timeout(SHORT)
    meet(group, 3)
    group.shutdown()
    group.set_timeout(TIMEOUT)  # there is nobody whom it concerns
    assert meetings.timeouts == [(TIMEOUT, SHORT), (TIMEOUT, TIMEOUT), (SHORT, SHORT)]
    assert [event for event in meetings.events if event.startswith("limit")] == ["limit of sums uuid-2", "limit uuid-2"]


@pytest.mark.parametrize(("given", "limit_s"), [({}, 3.0), ({"rejoin_limit_s": 7.0}, 7.0)])
def test_who_falls_silent_is_waited_for_as_long_as_the_options_say_or_not_for_long(
    meetings: Meetings, given: dict[str, Any], limit_s: float
) -> None:
    group = ReconfigurableGroup(TIMEOUT, {"window": 16, **given})
    meet(group, 1)
    group.shutdown()
    assert meetings.options == {"window": 16, "rejoin_limit_s": limit_s}


@pytest.mark.parametrize("host", ["10.0.0.9", "fd00::9", "rack3.example"])
def test_the_first_member_is_met_where_its_handle_says(
    meetings: Meetings, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    group, stores = new_group(), list[tuple[str, int, dict[str, Any]]]()
    handles = [f"inagg:0:4711:{host}", group.get_reconfigure_handle()]

    def connect(host: str, port: int, **options: Any) -> HashStore:
        stores.append((host, port, options))
        return HashStore()

    monkeypatch.setattr(reconfigurable, "TCPStore", connect)
    reconfigure(group, 1, handles, SHORT)
    assert (group.rank(), group.size()) == (1, 2)
    group.shutdown()
    assert stores == [(host, 4711, {"is_master": False, "wait_for_workers": False, "timeout": SHORT})]


@pytest.mark.parametrize(
    ("given", "switch", "host"),
    [
        ({}, "127.0.0.1:1", "127.0.0.1"),
        ({}, "127.0.0.1:1, 192.0.2.1:1", "127.0.0.1"),
        ({"host": "127.0.0.3"}, "127.0.0.1:1", "127.0.0.3"),
    ],
)
def test_a_member_is_met_where_its_datagrams_come_from(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], switch: str, host: str
) -> None:
    """The address that is given, or that from which the first of the switches is reached."""
    monkeypatch.setenv("INAGG_SWITCH", switch)
    group = ReconfigurableGroup(TIMEOUT, given)
    assert group.get_reconfigure_handle().split(":", 3)[3] == host
    group.shutdown()


def test_a_switch_to_which_there_is_no_way_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(host: str, port: int) -> tuple[str, str]:
        raise OSError("Network is unreachable")

    monkeypatch.setenv("INAGG_SWITCH", "192.0.2.1:1")
    monkeypatch.setattr(reconfigurable, "ends_of_way", none)
    group = new_group()
    with pytest.raises(ConfigError, match=r"no way to the switch at 192\.0\.2\.1:1: Network is unreachable"):
        group.get_reconfigure_handle()
    group.shutdown()


def test_the_handle_stays_the_same(meetings: Meetings) -> None:
    group = new_group()
    before = group.get_reconfigure_handle()
    meet(group, 1)
    assert group.get_reconfigure_handle() == before
    group.shutdown()


# --- as torch calls it ---

SCRIPT = """
import os, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist
rank, path = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(path, 3)
dist.init_process_group(
    "inagg", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=60), enable_reconfigure=True
)
assert dist._supports_reconfigure()
def meet(name, ranks):
    store.set(f"{name}/{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{name}/{r}").decode() for r in ranks]
dist._reconfigure(1, meet("all", range(3)), timeout=timedelta(seconds=30)).wait()
assert (dist.get_rank(), dist.get_world_size()) == (rank, 3)
ones = torch.ones(10_000)
dist.all_reduce(ones)
assert float(ones[0]) == 3.0
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(10_000))
except RuntimeError as error:
    assert "rank 1" in str(error), error
else:
    raise AssertionError("a sum without rank 1")
dist._reconfigure(2, meet("two", (0, 2)), timeout=timedelta(seconds=30)).wait()
ones = torch.ones(10_000)
dist.all_reduce(ones)
told = torch.full((4,), float(dist.get_rank()) + 7)
dist.broadcast(told, group_src=0)
print(dist.get_rank(), dist.get_world_size(), float(ones[0]), float(told[0]))
dist.destroy_process_group()
"""


@native
def test_torch_reconfigures_the_default_group_when_a_rank_is_killed(switch: str, tmp_path: Any) -> None:
    environment = {**os.environ, "INAGG_SWITCH": switch}
    command = [sys.executable, "-c", SCRIPT]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    said = [rank.communicate(timeout=180) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL, 0], said
    assert [out.splitlines()[-1:] for out, _ in said] == [["0 2 2.0 7.0"], [], ["1 2 2.0 7.0"]], said
