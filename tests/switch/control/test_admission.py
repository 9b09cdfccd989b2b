"""What can never run is refused with what could."""

from __future__ import annotations

import dataclasses
import math

import pytest
from tests.switch.control.world import LIMITS, spec

from inagg_switch.control.admission import check
from inagg_switch.control.refusals import Code, ControlError


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": ""}, "'' is no name for a job"),
        ({"name": "-x"}, "begin with a letter or digit"),
        ({"name": "a b"}, "is no name"),
        ({"name": "é"}, "is no name"),
        ({"name": "a\n"}, "is no name"),
        ({"name": "a" * 65}, "use 1 to 64 letters"),
        ({"name": "a" * 64 + "b" * 1000}, f"'{'a' * 64}'... (of 1,064 characters) is no name for a job"),
        ({"workers": 0}, "0 workers: a job of nat8 has 1 to 32768"),
        ({"workers": 33}, "33 workers: one switch serves 1 to 32; more join through switches below it"),
        ({"format_name": "nat9"}, "no format 'nat9'; choose one of nat8"),
        ({"lanes": 0}, "takes a multiple of 8 from 8 to 1448"),
        ({"lanes": 12}, "takes a multiple of 8 from 8 to 1448"),
        ({"lanes": 1456}, "this switch takes up to 1448 for nat8"),
        ({"format_name": "fix32", "lanes": 1448}, "from 8 to 360"),
        ({"window": 0}, "choose 1 to 65536"),
        ({"window": 65537}, "choose 1 to 65536"),
        ({"heartbeat_limit_s": 0.1}, "choose 0.2 to 86400 seconds"),
        ({"heartbeat_limit_s": math.nan}, "choose 0.2 to 86400 seconds"),
        ({"rejoin_limit_s": math.inf}, "choose 0 to 86400 seconds"),
        ({"rejoin_limit_s": -0.5}, "choose 0 to 86400 seconds"),
    ],
)
def test_a_wrong_spec_is_refused_with_what_would_do(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ControlError) as caught:
        spec(**wrong)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert words in caught.value.text


@pytest.mark.parametrize(
    ("format_name", "datagram_bytes", "lanes", "window"),
    [
        ("nat8", 1472, 1448, 512),
        ("nat4", 1472, 2896, 512),
        ("nat8", 8972, 8944, 128),
        ("nat8", 13094, 13064, 128),
        ("fix32", 65507, 16368, 32),
        ("nat4", 13101, 2896, 512),
        ("tern", 13101, 2896, 512),
        ("dith8", 13101, 1448, 512),
        ("nat8", 200, 176, 512),
    ],
)
def test_lanes_and_window_that_are_left_to_the_switch_are_as_many_as_do_no_harm(
    format_name: str, datagram_bytes: int, lanes: int, window: int
) -> None:
    limits = dataclasses.replace(LIMITS, lanes=65528, datagram_bytes=datagram_bytes)
    found = check(limits, name="job", workers=4, format_name=format_name, lanes=None, window=None)
    assert (found.lanes, found.window) == (lanes, window)


@pytest.mark.parametrize(
    ("lanes", "slots", "window"),
    [
        pytest.param(256, 65536, 2048, id="as many bytes as of full frames"),
        pytest.param(32, 65536, 4096, id="an eighth of the slots"),
        pytest.param(32, 16384, 1024, id="an eighth of a Tofino's"),
        pytest.param(32, 1024, 512, id="no less than of full frames"),
    ],
)
def test_a_chosen_window_follows_the_bytes_in_flight(lanes: int, slots: int, window: int) -> None:
    limits = dataclasses.replace(LIMITS, slots=slots)
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=lanes, window=None).window == window


def test_a_chosen_window_is_no_larger_than_what_the_switch_takes_at_once() -> None:
    limits = dataclasses.replace(LIMITS, window=16)
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=None, window=None).window == 16
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=None, window=64).window == 64


def test_a_switch_whose_program_is_for_a_tree_takes_no_job_alone() -> None:
    limits = dataclasses.replace(LIMITS, alone=False)
    with pytest.raises(ControlError, match="workers join through the switches below it"):
        check(limits, name="job", workers=4, format_name="nat8", lanes=None, window=None)
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=None, window=None, tree=True).parts == 4


def test_a_chosen_window_is_one_that_the_switch_has_room_for() -> None:
    limits = dataclasses.replace(LIMITS, slots=64)
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=None, window=None).window == 32


def test_a_switch_whose_jobs_have_a_multiple_of_some_lanes_says_which() -> None:
    limits = dataclasses.replace(LIMITS, lanes=96, lane_step=32)
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=None, window=16).lanes == 96
    assert check(limits, name="job", workers=4, format_name="nat8", lanes=64, window=16).lanes == 64
    with pytest.raises(ControlError, match="24 lanes: jobs of this switch have 32, 64, 96"):
        check(limits, name="job", workers=4, format_name="nat8", lanes=24, window=16)


def test_a_switch_that_could_have_more_lanes_says_how() -> None:
    limits = dataclasses.replace(LIMITS, lanes=32, lane_step=32, more_lanes="do this")
    with pytest.raises(ControlError, match="64 lanes: this switch takes up to 32 for nat8; for more, do this"):
        check(limits, name="job", workers=4, format_name="nat8", lanes=64, window=16)


@pytest.mark.parametrize("name", ["a", "0", "train:0", "group/a.b_c-d", "x" * 64])
def test_names_of_many_kinds_are_taken(name: str) -> None:
    assert spec(name).name == name


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"formats": frozenset({"nat8", "tern"})}, "this switch does not serve fix32; choose one of nat8, tern"),
        ({"workers": 8}, "32 workers: one switch serves 1 to 8"),
        ({"lanes": 64}, "360 lanes: this switch takes up to 64 for fix32"),
        ({"datagram_bytes": 152}, "in datagrams of up to 152 bytes takes a multiple of 8 from 8 to 32"),
    ],
)
def test_what_this_switch_cannot_serve_is_refused(limits: dict[str, object], words: str) -> None:
    with pytest.raises(ControlError, match=words):
        check(
            dataclasses.replace(LIMITS, **limits),  # type: ignore[arg-type]
            name="job",
            workers=32,
            format_name="fix32",
            lanes=360,
            window=1,
        )
