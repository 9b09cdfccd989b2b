"""As `test_kill`, with the policy "fallback": the ranks go on over Gloo, say so once, and come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_host.membership.fallback import REASON
from inagg_testbed.switch_process import SwitchProcess

from .processes import Ranks, Script, start_switch
from .proxy import Proxy
from .test_kill import FOREVER, LARGE, SOON_S, STEPS


@pytest.fixture
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


@pytest.fixture
def script(switch: SwitchProcess, tmp_path: Path) -> Script:
    """Until the ranks are back; every sum is exact, by whichever way."""
    options = {"switch": switch.control, "job": "j", "policy": "fallback", "reconnect_s": 1.0}
    return Script(FOREVER, options, LARGE, exact=True, store=str(tmp_path / "store"), until_back=True)


def came_back(ranks: Ranks) -> None:
    """All ranks have ended as they should: they went to the inner group for so many sums, said so once, came back."""
    went = [ranks.hear(rank, "inner") for rank in range(len(ranks.processes))]
    assert went[0] > 0
    assert went == [went[0]] * len(went)
    for rank in range(len(went)):
        (line,) = ranks.hear(rank, "loud")
        assert line.startswith(f"[{REASON}] rank {rank} of job 'j' goes on without the switch, on the inner group: ")
    assert len({tuple(ranks.sums(rank)) for rank in range(len(went))}) == 1


def test_without_the_switch_all_go_on_from_the_same_tensor_until_it_is_back(
    switch: SwitchProcess, script: Script
) -> None:
    with Ranks([script] * 2) as ranks:
        ranks.in_the_middle()
        switch.kill()
        ranks.hear(0, LARGE + 20)
        with start_switch(before=switch):
            came_back(ranks)


@pytest.mark.slow
def test_a_switch_that_is_back_in_time_is_not_left(switch: SwitchProcess, script: Script) -> None:
    patient = Script(STEPS, script.options | {"reconnect_s": 30.0}, LARGE, exact=True, store=script.store)
    with Ranks([patient] * 2) as ranks:
        ranks.in_the_middle()
        switch.kill()
        with start_switch(before=switch):
            for rank in range(2):
                assert ranks.hear(rank, "end") == 2
                assert ranks.hear(rank, "inner") == 0
                assert ranks.hear(rank, "loud") == []


def test_a_rank_that_is_killed_cannot_be_done_without_and_is_named(switch: SwitchProcess, script: Script) -> None:
    with Ranks([script] * 3) as ranks:
        ranks.in_the_middle()
        ranks.processes[1].kill()
        killed_s = time.monotonic()
        for rank in (0, 2):
            text = ranks.hear(rank, "error")
            assert "rank 1" in text
            assert "the inner group cannot be used either" in text
        assert time.monotonic() - killed_s < SOON_S


def test_a_rank_that_is_cut_off_from_the_switch_takes_all_to_the_inner_group_until_it_is_back(
    switch: SwitchProcess, script: Script
) -> None:
    proxy = Proxy(switch.control)
    with Ranks([script, script.but(switch=proxy.address), script]) as ranks:
        ranks.in_the_middle()
        proxy.kill()
        ranks.hear(0, LARGE + 20)
        again = Proxy(switch.control, before=proxy)
        came_back(ranks)
        again.kill()
