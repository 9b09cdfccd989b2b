"""Results by multicast: the same sums as one by one, whoever listens, and less to send for the switch."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.switch.e2e.running import Array, Rank, Run, Switch, gradients, inagg, until, wait_for_slots

from inagg_host.allreduce import AllReduce
from inagg_host.core import Epoch
from inagg_host.io.loop import Loop
from inagg_host.membership.session import Session
from inagg_link.base import Batch, Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_link.groups import Group, GroupLink
from inagg_link.udp import UdpLink
from inagg_switch.service.control_client import ControlClient

SIZES = (1, 3_000, 400_000)
"""Scales alone are sent without the loop; the last is streamed in it, where there is one."""
OPTIONS: dict[str, Any] = {"job": "multicast", "seed": 7, "format": "nat8"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    """A switch that sends to each rank."""
    with Switch(tmp_path_factory.mktemp("alone"), "--multicast", "off") as switch:
        yield switch


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[list[Group]]:
    """To which groups the links of this process were told to listen, in order."""
    told: list[list[Group]] = []
    listen = GroupLink.listen

    def note(link: GroupLink, groups: list[Group]) -> None:
        listen(link, groups)
        told.append(list(groups))

    monkeypatch.setattr(GroupLink, "listen", note)
    return told


def lends() -> bool:
    """Whether loops can run here."""
    with UdpLink() as link:
        return link.port() is not None


def sums(switch: Switch, arrays: list[list[Array]], **options: Any) -> list[Array]:
    """Those of rank 0; the others have the same."""
    results = Run(switch.address, arrays, **OPTIONS | options).results()
    with switch.client() as client:
        wait_for_slots(client, 0)
    return results[0]


def assert_same(some: list[Array], others: list[Array]) -> None:
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a, b)


def sent(client: ControlClient) -> int:
    """Datagrams that the first shard has sent."""
    return client.stats().shards[0].datagrams_out


# --- the same sums ---


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("loop", [True, False], ids=["in the loop", "without the loop"])
def test_the_sums_are_those_of_a_switch_that_sends_to_each_rank(
    good: Switch,
    alone: Switch,
    listening: list[list[Group]],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    loop: bool,
) -> None:
    if not loop:
        monkeypatch.setattr(GroupLink, "port", lambda link: None)
    arrays = gradients(workers, SIZES, workers)
    multicast = sums(good, arrays)
    assert [len(groups) for groups in listening] == [1] * workers
    assert len({groups[0] for groups in listening}) == 1
    listening.clear()
    assert_same(multicast, sums(alone, arrays))
    assert listening == [[]] * workers


def test_each_of_several_shards_multicasts_in_the_loop_and_without_it(
    start: Callable[..., Switch], listening: list[list[Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, arrays = start("--shards", "3"), gradients(2, SIZES, 2)
    runs: list[Loop] = []  # but for those that only compile it
    run = Loop.run

    def counted(pump: Loop, *arguments: Any) -> Any:
        if isinstance(pump._link, GroupLink):
            runs.append(pump)
        return run(pump, *arguments)

    monkeypatch.setattr(Loop, "run", counted)
    in_loop = sums(switch, arrays)
    assert bool(runs) == lends()
    runs.clear()
    monkeypatch.setattr(GroupLink, "port", lambda link: None)
    assert_same(in_loop, sums(switch, arrays))
    assert not runs
    assert [len(groups) for groups in listening] == [3] * 4


@pytest.mark.parametrize("options", [("--shards", "2"), ("--no-offload",), ("--capture", "{}/run.pcap")])
def test_other_switches_multicast_as_well(
    start: Callable[..., Switch], alone: Switch, listening: list[list[Group]], tmp_path: Path, options: tuple[str, ...]
) -> None:
    switch = start(*(option.format(tmp_path) for option in options))
    arrays, shards = gradients(2, SIZES, 2), len(switch.ready["shards"])
    multicast = sums(switch, arrays, format="fix32")
    assert [len(groups) for groups in listening] == [shards] * 2
    assert_same(multicast, sums(alone, arrays, format="fix32"))


def test_a_recording_is_computed_again_bit_for_bit(
    start: Callable[..., Switch], listening: list[list[Group]], tmp_path: Path
) -> None:
    path = tmp_path / "run.pcap"
    switch = start("--record", str(path))
    sums(switch, gradients(3, [1, 700, 6000], 3))
    assert [len(groups) for groups in listening] == [1] * 3
    switch.signal()
    assert switch.ended() == 0
    again = inagg("replay", "--json", str(path), timeout_s=120)
    assert again.returncode == 0, again.stdout + again.stderr
    for line in map(json.loads, again.stdout.splitlines()):
        assert line["identical"]
        assert line["whole"]


def test_a_switch_sends_each_result_once(good: Switch, alone: Switch) -> None:
    arrays, workers = gradients(4, [400_000], 4), 4
    out = []
    for switch in (good, alone):
        with switch.client() as client:
            before = sent(client)
            sums(switch, arrays)
            out.append(sent(client) - before)
    assert out[0] * (workers - 1) < out[1]  # to the group once, and perhaps some results again


def test_it_says_so_when_it_starts(start: Callable[..., Switch], good: Switch, alone: Switch) -> None:
    assert (good.ready["multicast"], alone.ready["multicast"]) == ("239.255.0.0/16", None)
    switch = start("--log-format", "human", "--multicast", "239.192.0.0/16")
    assert "results are multicast to groups of 239.192.0.0/16" in switch.out_file.read_text()
    switch = start("--log-format", "human", "--loss", "0.1")
    assert "multicast" not in switch.out_file.read_text()
    assert switch.ready["multicast"] is None


# --- who does not listen ---


def sums_with(switch: Switch, wrap: Callable[[Link], Link]) -> list[Array]:
    """Those of two ranks, of which the first has something around its link."""
    arrays = gradients(2, SIZES, 5)
    options = {"switch": switch.address, "workers": 2, **OPTIONS}
    ranks = [Rank(arrays[0], rank=0, wrap_link=wrap, **options), Rank(arrays[1], rank=1, **options)]
    results = [rank.result() for rank in ranks]
    assert_same(*results)
    with switch.client() as client:
        wait_for_slots(client, 0)
    return results[0]


def test_one_rank_that_does_not_listen_has_all_served_one_by_one(
    good: Switch, alone: Switch, listening: list[list[Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Session.join

    def deaf(session: Session, *arguments: Any, multicast: bool = False) -> Epoch:
        return join(session, *arguments, multicast=multicast and session._config.rank != 0)

    monkeypatch.setattr(Session, "join", deaf)
    arrays = gradients(2, SIZES, 5)
    assert_same(sums(good, arrays), sums(alone, arrays))
    assert listening == [[]] * 4


@pytest.mark.parametrize("loop", [True, False], ids=["in the loop", "without the loop"])
def test_losses_at_a_rank_change_no_bit(
    good: Switch, alone: Switch, listening: list[list[Group]], monkeypatch: pytest.MonkeyPatch, loop: bool
) -> None:
    if not loop:
        monkeypatch.setattr(GroupLink, "port", lambda link: None)
    links: list[FaultLink] = []

    def wrap(link: Link) -> FaultLink:
        links.append(FaultLink(link, Faults(drop=0.05), seed=1))
        return links[-1]

    lossy = sums_with(good, wrap)
    assert [len(groups) for groups in listening] == [1, 1]
    assert links[0].receiving.counters.dropped > 0
    assert_same(lossy, sums(alone, gradients(2, SIZES, 5)))


class Losing:
    """Listens, and loses some of what comes to the group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = 0
        self._rng = np.random.default_rng(3)
        receive = UdpLink.receive

        def some(link: UdpLink, timeout_s: float) -> list[Batch]:
            batches = receive(link, timeout_s)
            if link.address[0].startswith("239."):
                kept = [batch for batch in batches if self._rng.random() > 0.2]
                self.lost += len(batches) - len(kept)
                return kept
            return batches

        monkeypatch.setattr(UdpLink, "receive", some)
        monkeypatch.setattr(GroupLink, "port", lambda link: None)


def test_a_result_that_is_lost_on_the_way_to_one_listener_is_sent_again_to_it_alone(
    good: Switch, alone: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = sums(alone, gradients(3, SIZES, 6))
    losing = Losing(monkeypatch)
    assert_same(calm, sums(good, gradients(3, SIZES, 6)))
    assert losing.lost > 0


def test_a_rank_that_finds_that_it_cannot_listen_has_all_join_again_without(
    good: Switch, alone: Switch, listening: list[list[Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = GroupLink.listen
    failed: list[GroupLink] = []

    def fail_once(link: GroupLink, groups: list[Group]) -> None:
        if groups and not failed:
            failed.append(link)
            raise OSError("simulated")
        listen(link, groups)

    monkeypatch.setattr(GroupLink, "listen", fail_once)
    multicast = sums(good, gradients(3, SIZES, 8))
    assert len(failed) == 1
    assert listening.count([]) >= 2
    assert_same(multicast, sums(alone, gradients(3, SIZES, 8)))


def test_what_is_sent_to_a_job_is_not_heard_by_another(
    good: Switch, client: ControlClient, listening: list[list[Group]]
) -> None:
    shard = good.ready["shards"][0]
    with GroupLink(UdpLink()) as others:
        # Whatever number the next job gets, it is none of these: numbers go up.
        last = _number(good, listening)
        others.listen([Group((f"239.255.{n >> 8}.{n & 255}", shard["port"]), (shard["host"], shard["port"]))
                       for n in range(last + 2, last + 10)])  # fmt: skip
        assert _number(good, listening) == last + 1
        assert others.receive(0.05) == []


# --- ends ---


def test_a_worker_leaves_no_descriptor(good: Switch, client: ControlClient) -> None:
    def descriptors() -> list[str]:
        return sorted(link for path in Path("/proc/self/fd").iterdir() if (link := _target(path)))

    def once() -> None:
        with AllReduce(switch=good.address, rank=0, workers=1, job="leak") as all_reduce:
            all_reduce(np.ones(1000, np.float32))
        wait_for_slots(client, 0)

    once()  # gRPC keeps some
    before = descriptors()
    for _ in range(3):
        once()
    until(lambda: len(descriptors()) <= len(before), 10, f"{before}; and all closed")


def _number(switch: Switch, listening: list[list[Group]]) -> int:
    """The number of a job that has run, as its group tells it."""
    listening.clear()
    sums(switch, gradients(2, SIZES, 1))
    return int(ipaddress.ip_address(listening[0][0].address[0])) & 0xFFFF


def _target(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:  # closed meanwhile
        return ""
