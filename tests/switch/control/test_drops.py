"""Refusals that grow, in sentences."""

from __future__ import annotations

from inagg_switch.control.drops import DropWatch, drop_sentences
from inagg_wire.errors import Reason


def test_what_grew_in_the_last_seconds_is_told_the_most_frequent_first() -> None:
    watch = DropWatch()
    for second in range(30):
        watch.observe(float(second), {"trailing_bytes": 4 * second, "wrong_token": 100 + second, "bad_magic": 7})
    watched_s, grown = watch.grown()
    assert (watched_s, grown) == (10.0, {"trailing_bytes": 40, "wrong_token": 10})
    first, second_ = drop_sentences(watched_s, grown)
    assert first.startswith("In the last 10.0 s the switch refused 40 datagrams as trailing_bytes")
    assert "gso_max_segs 1" in first
    assert "an epoch or a run that is over" in second_


def test_what_one_look_shows_is_not_growth() -> None:
    watch = DropWatch()
    watch.observe(0.0, {"wrong_token": 9})
    assert watch.grown() == (0.0, {})
    assert list(drop_sentences(*watch.grown())) == []


def test_a_switch_below_that_goes_takes_its_counts_with_it() -> None:
    watch = DropWatch()
    watch.observe(0.0, {"wrong_token": 9, "bad_magic": 1})
    watch.observe(1.0, {"wrong_token": 3, "bad_magic": 2})
    assert watch.grown() == (0.0, {})
    watch.observe(2.0, {"wrong_token": 4, "bad_magic": 2})
    assert watch.grown() == (1.0, {"wrong_token": 1})


def test_what_repeating_what_was_lost_looks_like_is_no_refusal() -> None:
    assert list(drop_sentences(5.0, {"duplicate": 1000, "stale": 10})) == []


def test_of_many_reasons_the_most_frequent_are_told() -> None:
    grown = {"bad_magic": 9, "wrong_token": 8, "truncated": 7, "wrong_lanes": 6}
    assert [sentence.split(" (")[0].split()[-1] for sentence in drop_sentences(5.0, grown)] == list(grown)[:3]


def test_every_reason_can_be_told() -> None:
    for reason in Reason:
        for sentence in drop_sentences(5.0, {reason.label: 1}):
            assert sentence.startswith(f"In the last 5.0 s the switch refused 1 datagram as {reason.label} (")
            assert sentence.endswith(".")
