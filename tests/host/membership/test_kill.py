"""What users meet when a process is killed in the middle of a step: the switch, a rank, the way to the switch.

Policy "raise"; the other one is in `test_kill_fallback`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.switch.service.member_client import MemberClient

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.membership.session import Session
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.control_client import ControlClient
from inagg_testbed.switch_process import SwitchProcess

from .processes import Ranks, Script, start_switch
from .proxy import Proxy

STEPS, LARGE = 60, 30
FOREVER = 100_000
SOON_S = 20.0
"""Limits here are of a second or two; the rest is for a machine that is busy."""


@pytest.fixture
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


def script(switch: SwitchProcess, job: str, steps: int = STEPS, **options: Any) -> Script:
    return Script(steps, {"switch": switch.control, "job": job, "seed": 7, **options}, LARGE)


@pytest.fixture(scope="module")
def undisturbed() -> list[int]:
    """The bits depend on the seed alone, not on the switch or the slots."""
    with start_switch() as switch, Ranks([script(switch, "undisturbed")] * 2) as ranks:
        for rank in range(2):
            ranks.hear(rank, "end")  # a machine that is busy for a second begins another epoch, which changes no bit
        return ranks.sums(0)


# --- the switch ---


def base_of(switch: SwitchProcess, name: str) -> int:
    """The first slot of a job."""
    with ControlClient(switch.control) as client:
        return next(job.leases[0].base for job in client.list().jobs if job.spec.name == name)


@pytest.mark.parametrize("other_slots", [False, True])
def test_a_switch_killed_and_started_again_changes_no_bit(
    switch: SwitchProcess, undisturbed: list[int], other_slots: bool
) -> None:
    if other_slots:  # another job has the first ones, and does not come back
        with MemberClient(switch.control) as client:
            client.create(pb.JobSpec(name="other", workers=2, format="nat8"))
    with Ranks([script(switch, "disturbed")] * 2) as ranks:
        ranks.in_the_middle()
        assert (base_of(switch, "disturbed") > 0) == other_slots
        switch.kill()
        with start_switch(before=switch):
            for rank in range(2):
                assert ranks.hear(rank, "end") >= 2
                assert ranks.sums(rank) == undisturbed


def test_a_switch_that_would_choose_larger_blocks_goes_on_with_those_of_the_one_before(
    switch: SwitchProcess, undisturbed: list[int]
) -> None:
    with Ranks([script(switch, "disturbed")] * 2) as ranks:
        ranks.in_the_middle()
        switch.kill()
        with start_switch("--datagram-bytes", "40000", before=switch):
            assert ranks.hear(0, "end") >= 2
            assert ranks.sums(0) == undisturbed


@pytest.mark.parametrize(("first", "then"), [("auto", "off"), ("off", "auto"), ("auto", "239.192.0.0/16")])
def test_a_switch_that_multicasts_otherwise_than_the_one_before_changes_no_bit(
    undisturbed: list[int], first: str, then: str
) -> None:
    with start_switch("--multicast", first) as switch, Ranks([script(switch, "disturbed")] * 2) as ranks:
        ranks.in_the_middle()
        switch.kill()
        with start_switch("--multicast", then, before=switch):
            for rank in range(2):
                assert ranks.hear(rank, "end") >= 2
                assert ranks.sums(rank) == undisturbed


def test_a_switch_that_stays_away_is_an_error_on_every_rank(switch: SwitchProcess) -> None:
    with Ranks([script(switch, "j", FOREVER, reconnect_s=1.0)] * 2) as ranks:
        ranks.in_the_middle()
        switch.kill()
        killed_s = time.monotonic()
        for rank in range(2):
            assert f"cannot reach the switch at {switch.control}" in ranks.hear(rank, "error")
        assert time.monotonic() - killed_s < SOON_S


# --- a rank ---


def test_a_rank_that_is_killed_is_named_on_every_other_rank(switch: SwitchProcess) -> None:
    with Ranks([script(switch, "j", FOREVER)] * 3) as ranks:
        ranks.in_the_middle()
        ranks.processes[1].kill()
        killed_s = time.monotonic()
        for rank in (0, 2):
            assert "rank 1" in ranks.hear(rank, "error")
        assert time.monotonic() - killed_s < SOON_S


def test_a_job_does_not_wait_for_the_process_of_a_killed_rank_to_come_back() -> None:
    with start_switch("--rejoin-limit", "600") as switch, Ranks([script(switch, "j", FOREVER)] * 2) as ranks:
        ranks.in_the_middle()
        ranks.processes[1].kill()
        killed_s = time.monotonic()
        assert "the connection of rank 1 broke off" in ranks.hear(0, "error")
        assert time.monotonic() - killed_s < SOON_S


def test_a_job_waits_for_a_killed_rank_no_longer_than_it_asked_for() -> None:
    with (
        start_switch("--rejoin-limit", "600") as switch,
        Ranks([script(switch, "j", FOREVER, rejoin_limit_s=1.0)] * 2) as ranks,
    ):
        ranks.in_the_middle()
        ranks.processes[1].kill()
        killed_s = time.monotonic()
        assert "did not come back within 1.0 s" in ranks.hear(0, "error")
        assert time.monotonic() - killed_s < SOON_S


def test_a_rank_that_never_comes_is_an_error_that_names_it(switch: SwitchProcess) -> None:
    with Ranks([script(switch, "j", workers=2, join_timeout_s=1.0)]) as ranks:
        assert "rank 1" in ranks.hear(0, "error")


def test_a_rank_that_left_before_another_began_to_watch_is_named_as_well(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, listen = threading.Event(), Session._listen

    def late(session: Session) -> None:
        begin.wait(SOON_S)
        listen(session)

    monkeypatch.setattr(Session, "_listen", late)
    options: dict[str, Any] = {"switch": switch.control, "job": "j", "workers": 2}
    with ThreadPoolExecutor(2) as pool:
        leaving, staying = pool.map(lambda rank: AllReduce(rank=rank, **options), range(2))
        try:
            sums = [pool.submit(each, np.ones(1000, np.float32)) for each in (leaving, staying)]
            assert [float(done.result()[0]) for done in sums] == [2.0, 2.0]
            left = pool.submit(leaving.close)
            wait_until_left(switch, 0)
            begin.set()
            left.result()
            with pytest.raises(AllReduceError, match="rank 0 has left"):
                staying(np.ones(1000, np.float32))
        finally:
            staying.close()


def wait_until_left(switch: SwitchProcess, rank: int) -> None:
    give_up_s = time.monotonic() + SOON_S
    with ControlClient(switch.control) as client:
        while client.list().jobs[0].members[rank].state != pb.MEMBER_STATE_LEFT:
            assert time.monotonic() < give_up_s
            time.sleep(0.01)


def test_a_rank_that_leaves_too_early_is_named_on_the_others_and_at_the_switch(switch: SwitchProcess) -> None:
    with Ranks([script(switch, "j", steps) for steps in (3, FOREVER)]) as ranks:
        ranks.hear(0, "end")
        assert "rank 0 has left" in ranks.hear(1, "error")
        with ControlClient(switch.control) as client:
            (text,) = client.why("j").text
        why = "rank 0 has left the job, and what it has not sent is waited for"
        assert text.startswith(f"The job is over: rank 1 ended job 'j': {why}. Have all ranks sum as many times")


# --- the way to the switch ---


@pytest.fixture
def proxy(switch: SwitchProcess) -> Iterator[Proxy]:
    proxy = Proxy(switch.control)
    yield proxy
    proxy.kill()


def test_a_control_connection_that_breaks_for_a_moment_changes_no_bit(
    switch: SwitchProcess, proxy: Proxy, undisturbed: list[int]
) -> None:
    mine = script(switch, "disturbed")
    with Ranks([mine, mine.but(switch=proxy.address)]) as ranks:
        ranks.in_the_middle()
        proxy.kill()
        again = Proxy(switch.control, before=proxy)
        for rank in range(2):
            assert ranks.hear(rank, "end") >= 2
            assert ranks.sums(rank) == undisturbed
        again.kill()


def test_a_control_connection_that_stays_broken_is_an_error_that_names_the_rank(
    switch: SwitchProcess, proxy: Proxy
) -> None:
    mine = script(switch, "j", FOREVER, reconnect_s=1.0)
    with Ranks([mine, mine.but(switch=proxy.address), mine]) as ranks:
        ranks.in_the_middle()
        proxy.kill()
        killed_s = time.monotonic()
        assert f"cannot reach the switch at {proxy.address}" in ranks.hear(1, "error")
        for rank in (0, 2):
            assert "rank 1" in ranks.hear(rank, "error")
        assert time.monotonic() - killed_s < SOON_S
