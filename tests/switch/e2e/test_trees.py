"""A tree of real switches: processes, sockets, and ranks that sum through their leaves."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_testbed.switch_process import COMMAND, SwitchProcess

PATIENCE_S = 60.0
LIMITS = ("--heartbeat-limit", "10", "--rejoin-limit", "20")
Array = npt.NDArray[np.float32]


def leaf_of(parent: SwitchProcess, name: str, *options: str, before: SwitchProcess | None = None) -> SwitchProcess:
    """A switch below ``parent``; where the one ``before`` was, if that is given."""
    where: dict[str, Any] = {} if before is None else {"control": before.control, "data": before.data}
    return SwitchProcess("--parent", parent.control, "--name", name, *options, **where)


@pytest.fixture(scope="module")
def root() -> Iterator[SwitchProcess]:
    with SwitchProcess(*LIMITS) as root:
        yield root


@pytest.fixture(scope="module")
def racks(root: SwitchProcess) -> Iterator[list[SwitchProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(leaf_of(root, f"rack{i}")) for i in range(2)]


@pytest.fixture(scope="module")
def lossy() -> Iterator[list[SwitchProcess]]:
    """Two leaves in a bad network, below a root of their own."""
    bad = ("--loss", "0.02", "--duplicate", "0.01", "--fault-seed", "3")
    with SwitchProcess(*LIMITS) as root, leaf_of(root, "bad0", *bad) as one, leaf_of(root, "bad1", *bad) as other:
        yield [one, other]


def values(rank: int, step: int, elements: int) -> Array:
    rng = np.random.default_rng([rank, step])
    return (rng.normal(size=elements) * np.exp2(rng.integers(-8, 8, elements))).astype(np.float32)


def sums(
    addresses: Sequence[str],
    job: str,
    steps: int = 3,
    elements: int = 20_000,
    between: Callable[[int, int], None] = lambda rank, step: None,
    **options: Any,
) -> list[list[Array]]:
    """What each rank gets, step by step; rank r talks to ``addresses[r]``. ``between``: called before each step."""

    def run(rank: int) -> list[Array]:
        settings: dict[str, Any] = {"workers": len(addresses), "job": job, "seed": 7, "lanes": 1440, "window": 16}
        with AllReduce(switch=addresses[rank], rank=rank, **(settings | options)) as all_reduce:
            got = []
            for step in range(steps):
                between(rank, step)
                got.append(all_reduce(values(rank, step, elements)))
            return got

    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(run, range(len(addresses)), timeout=PATIENCE_S))


def test_each_switch_says_where_its_own_data_goes(root: SwitchProcess, racks: list[SwitchProcess]) -> None:
    for switch in (root, *racks):
        with ControlClient(switch.control) as client:
            (address,) = client.data_planes().addresses
        assert f"{address.host}:{address.port}" == switch.data


def same(found: list[list[Array]], expected: list[list[Array]]) -> bool:
    return all(
        a.tobytes() == b.tobytes() for ours, theirs in zip(found, expected, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("name", ["nat8", "nat4", "dith8", "fix32", "tern"])
def test_a_tree_gives_the_bits_of_one_switch(root: SwitchProcess, racks: list[SwitchProcess], name: str) -> None:
    lanes = {"fix32": 360, "nat4": 1408}.get(name, 1440)
    flat = sums([root.control] * 5, f"flat-{name}", format=name, lanes=lanes)
    where = [racks[rank % 2].control for rank in range(5)]
    assert same(sums(where, f"tree-{name}", format=name, lanes=lanes), flat)


@pytest.mark.parametrize("name", ["nat8-reencode", "nat4-reencode"])
def test_sums_that_each_switch_rounds_are_those_of_the_tree_also_where_datagrams_are_lost(
    racks: list[SwitchProcess], lossy: list[SwitchProcess], name: str
) -> None:
    options: dict[str, Any] = {"format": name, "lanes": 1408, "steps": 2}
    found = sums([racks[rank // 2].control for rank in range(4)], f"calm-{name}", **options)
    again = sums([lossy[rank // 2].control for rank in range(4)], f"lost-{name}", **options)
    assert same(again, found)
    exact = np.stack([[values(rank, step, 20_000) for step in range(2)] for rank in range(4)]).sum(0, np.float64)
    off = np.array(found[0], np.float64) - exact
    # Each of three roundings: a variance of at most an eighth of the square, or in nat4 the lowest level's.
    assert np.sqrt((off**2).mean() / (exact**2).mean()) < (0.75 if name.startswith("nat8") else 2.0)
    assert abs(off.mean()) < 4.5 * off.std() / np.sqrt(off.size)


def test_blocks_in_parts_give_the_same_bits() -> None:
    """Datagrams for frames of 1500 bytes: partial sums of 1440 lanes go in four."""
    with SwitchProcess("--datagram-bytes", "1472", "--slots", "4096") as root, ExitStack() as stack:
        options = ("--datagram-bytes", "1472", "--slots", "4096")
        racks = [stack.enter_context(leaf_of(root, name, *options)) for name in ("a", "b")]
        where = [rack.control for rack in racks for _ in range(2)]
        assert same(sums(where, "parts"), sums([root.control] * 4, "whole"))
        lanes: list[int] = []
        with AllReduce(switch=racks[0].control, rank=0, workers=1, job="chosen") as alone:
            alone(np.ones(5000, np.float32))
            with ControlClient(racks[0].control) as client:
                lanes += [job.spec.lanes for job in client.list().jobs if job.spec.name == "chosen"]
        assert lanes == [1440]


def test_three_levels_give_the_bits_of_one_switch(root: SwitchProcess, racks: list[SwitchProcess]) -> None:
    flat = sums([root.control] * 3, "flat3")
    with leaf_of(racks[0], "deep0") as deep0, leaf_of(racks[0], "deep1") as deep1:
        assert same(sums([deep0.control, deep1.control, racks[1].control], "tree3"), flat)


def test_a_network_that_loses_costs_time_and_no_bits(root: SwitchProcess, lossy: list[SwitchProcess]) -> None:
    flat = sums([root.control] * 4, "flat-loss", steps=2)
    assert same(sums([lossy[rank // 2].control for rank in range(4)], "tree-loss", steps=2), flat)


def test_the_ranks_of_a_leaf_that_is_killed_go_to_their_next_switch(
    root: SwitchProcess, racks: list[SwitchProcess]
) -> None:
    """And the bits are those of a run that was never disturbed."""
    flat = sums([root.control] * 4, "flat-kill", steps=8)
    second = racks[1]
    with leaf_of(root, "first") as first:
        both = f"{first.control},{second.control}"

        def kill(rank: int, step: int) -> None:
            if rank == 0 and step == 4:
                first.kill()

        found = sums([both, both, second.control, second.control], "tree-kill", steps=8, between=kill, reconnect_s=20.0)
        assert same(found, flat)


def test_a_leaf_that_comes_back_is_taken_in_again(root: SwitchProcess, racks: list[SwitchProcess]) -> None:
    flat = sums([root.control] * 3, "flat-back", steps=6)
    with ExitStack() as stack:
        dies, lives = leaf_of(root, "dies"), racks[1]

        def restart(rank: int, step: int) -> None:
            if rank == 2 and step == 3:
                dies.kill()
                stack.enter_context(leaf_of(root, "dies", before=dies))

        where = [dies.control, lives.control, lives.control]
        assert same(sums(where, "tree-back", steps=6, between=restart, reconnect_s=30.0), flat)


def test_the_other_ranks_hear_which_leaf_died_and_who_was_there(
    root: SwitchProcess, racks: list[SwitchProcess], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "inagg")
    options: dict[str, Any] = {"reconnect_s": 1.0, "rejoin_limit_s": 2.0}
    with leaf_of(root, "gone") as gone:

        def kill(rank: int, step: int) -> None:
            if rank == 1 and step == 2:
                gone.kill()

        with pytest.raises(AllReduceError):
            sums([gone.control, racks[1].control], "tree-gone", steps=4, between=kill, **options)
    joins_again = [record.message for record in caplog.records if record.message.endswith("; joining again")]
    assert any(
        "rank 1 of job 'tree-gone': switch 'gone', where rank 0 joined, has gone" in message for message in joins_again
    )


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        call()


def test_a_switch_that_does_not_fit_the_tree_says_why(root: SwitchProcess, racks: list[SwitchProcess]) -> None:
    """All that can be wrong is in `tests.switch.control.test_topology`."""
    refused(lambda: leaf_of(root, "rack0"), "another of that name is there: give it a name of its own")
    refused(lambda: leaf_of(root, "small", "--slots", "64"), "start it with --slots")


def test_a_rank_that_joins_at_the_wrong_switch_is_told_where_to(
    root: SwitchProcess, racks: list[SwitchProcess]
) -> None:
    ready = threading.Event()

    def first() -> None:
        with pytest.raises(AllReduceError):
            AllReduce(switch=racks[0].control, rank=0, workers=2, job="wrong", join_timeout_s=4.0)
        ready.set()

    thread = threading.Thread(target=first)
    thread.start()
    with ControlClient(root.control) as client:
        while not any(job.spec.name == "wrong" for job in client.list().jobs):
            time.sleep(0.02)
    with pytest.raises(AllReduceError, match=r"its ranks join through the switches below this one \(rack0, rack1"):
        AllReduce(switch=root.control, rank=1, workers=2, job="wrong")
    thread.join()


def test_a_tree_keeps_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf needs it, as its workers do, and asks for it too."""
    monkeypatch.setenv("INAGG_SECRET", "s3cret")
    with SwitchProcess() as root, leaf_of(root, "knows") as leaf:
        got = sums([leaf.control] * 2, "secret", steps=1, secret="s3cret")
        assert got[0][0].tobytes() == got[1][0].tobytes()
        with pytest.raises(AllReduceError, match="shared secret"):
            AllReduce(switch=leaf.control, rank=0, workers=1, job="stranger", secret="other")
        monkeypatch.setenv("INAGG_SECRET", "other")
        refused(lambda: leaf_of(root, "stranger"), "refuses this switch: the shared secret is wrong")


def test_top_and_why_show_the_tree(root: SwitchProcess, racks: list[SwitchProcess]) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def hold(rank: int, step: int) -> None:
        if rank == 1 and step == 1:
            waits.set()
            assert go_on.wait(PATIENCE_S)

    def ask(*words: str) -> str:
        command = [*COMMAND, *words, "--switch", racks[0].control]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sums, [rack.control for rack in racks], "shown", 2, between=hold)
        assert waits.wait(PATIENCE_S)
        time.sleep(1.0)
        try:
            top, why, jobs = ask("top", "--once"), ask("why", "shown"), ask("jobs")
        finally:
            go_on.set()
        running.result(PATIENCE_S)
    assert "2 below it" in top
    assert all(name in top for name in ("rack0", "rack1"))
    assert "TRUNK OF" in top
    assert "miss rank 1 at switch 'rack1'" in " ".join(why.split())
    assert "rank 0 active at rack0, rank 1 active at rack1" in " ".join(jobs.split())


def test_what_a_leaf_is_asked_is_answered_from_above(root: SwitchProcess, racks: list[SwitchProcess]) -> None:
    with AllReduce(switch=racks[1].control, rank=0, workers=1, job="asked") as all_reduce:
        all_reduce(np.ones(3000, np.float32))
        with ControlClient(racks[0].control) as client:
            (job,) = [job for job in client.list().jobs if job.spec.name == "asked"]
            assert [member.switch for member in job.members] == ["rack1"]
            (stats,) = client.stats("asked").jobs
            assert stats.workers[0].contributions > 0
            assert stats.results >= stats.workers[0].contributions
            (trunk,) = stats.trunks
            assert (trunk.switch, trunk.partials) == ("rack1", stats.partials)
            assert trunk.partials >= stats.results
            assert client.why("asked").text
            assert client.healthy()
            with pytest.raises(ControlCallError, match="this switch has no job 'nobody'"):
                client.why("nobody")
