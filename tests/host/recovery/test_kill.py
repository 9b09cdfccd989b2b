"""What users meet when a process is killed: the switch, or a rank. Policy "raise"."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from inagg_testbed.switch_process import SwitchProcess

from .processes import Ranks, start_switch

STEPS = 600


@pytest.fixture
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


@pytest.fixture
def undisturbed(switch: SwitchProcess) -> list[int]:
    ranks = Ranks(2, STEPS, switch=switch.control, job="undisturbed", seed=7)
    try:
        for rank in range(2):
            assert ranks.hear(rank, "end") == 1
        ranks.leave()  # so that the next job has the same slots: the switch's noise depends on them
        return ranks.sums(0)
    finally:
        ranks.stop()


def test_a_switch_killed_and_started_again_changes_no_bit(switch: SwitchProcess, undisturbed: list[int]) -> None:
    ranks = Ranks(2, STEPS, switch=switch.control, job="disturbed", seed=7, reconnect_s=30.0)
    try:
        ranks.hear(0, 50)
        switch.kill()
        with start_switch(before=switch):
            for rank in range(2):
                assert ranks.hear(rank, "end") == 2
                assert ranks.sums(rank) == undisturbed
    finally:
        ranks.stop()


def test_a_switch_that_stays_away_is_an_error_on_every_rank(switch: SwitchProcess) -> None:
    ranks = Ranks(2, 100_000, switch=switch.control, reconnect_s=1.0)
    try:
        ranks.hear(0, 10)
        switch.kill()
        killed_s = time.monotonic()
        for rank in range(2):
            assert switch.control in ranks.hear(rank, "error")
        assert time.monotonic() - killed_s < 20
    finally:
        ranks.stop()


def test_a_rank_that_is_killed_is_named_on_every_other_rank(switch: SwitchProcess) -> None:
    ranks = Ranks(3, 100_000, switch=switch.control)
    try:
        ranks.hear(0, 10)
        ranks.processes[1].kill()
        killed_s = time.monotonic()
        for rank in (0, 2):
            assert "rank 1" in ranks.hear(rank, "error")
        assert time.monotonic() - killed_s < 20
    finally:
        ranks.stop()


def test_a_rank_that_never_comes_is_an_error_that_names_it(switch: SwitchProcess) -> None:
    ranks = Ranks(1, 1, switch=switch.control, workers=2, join_timeout_s=1.0)
    try:
        assert "1" in ranks.hear(0, "error")
    finally:
        ranks.stop()


def test_a_rank_that_leaves_too_early_is_named_on_the_others(switch: SwitchProcess) -> None:
    ranks = Ranks(2, [3, 100_000], switch=switch.control)
    try:
        ranks.hear(0, "end")
        assert "rank 0 has left" in ranks.hear(1, "error")
    finally:
        ranks.stop()
