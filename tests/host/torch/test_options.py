"""Arguments, `configure` and the environment: which one counts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from inagg_host.config import VARIABLES, ConfigError
from inagg_host.torch import InaggState
from inagg_host.torch.options import (
    DEFAULT_MIN_BYTES,
    REDUCE_SCATTER_FORMAT,
    REJOIN_LIMIT_S,
    Options,
    Settings,
    configure,
    option,
    resolve_options,
    with_local_size,
)

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("INAGG_SWITCH", "INAGG_JOB", "INAGG_MIN_BYTES", "INAGG_TIMEOUT", "INAGG_SUMMARY", "INAGG_FORMAT"):
        monkeypatch.delenv(variable, raising=False)
    yield
    configure()


def settled(timeout: timedelta = MINUTE, **given: Any) -> Settings:
    return resolve_options({"switch": "a:1", **given}, 1, 2, timeout)


def test_rank_and_workers_are_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    settings = settled()
    assert (settings.config.rank, settings.config.workers) == (1, 2)


def test_arguments_win_over_configure_and_that_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INAGG_SWITCH", "environment:1")
    monkeypatch.setenv("INAGG_MIN_BYTES", "111")
    assert resolve_options({}, 0, 2, MINUTE).min_bytes == 111
    configure(switch="configured:1", min_bytes=222)
    assert resolve_options({}, 0, 2, MINUTE).config.switch == "configured:1"
    assert resolve_options({}, 0, 2, MINUTE).min_bytes == 222
    settings = resolve_options({"switch": "given:1", "min_bytes": 333}, 0, 2, MINUTE)
    assert (settings.config.switch, settings.min_bytes) == ("given:1", 333)


def test_an_argument_of_none_is_not_given() -> None:
    configure(switch="configured:1")
    assert resolve_options({"switch": None}, 0, 2, MINUTE).config.switch == "configured:1"


def test_configure_replaces_what_was_configured() -> None:
    configure(switch="a:1", min_bytes=1)
    configure(switch="a:1")
    assert resolve_options({}, 0, 2, MINUTE).min_bytes == DEFAULT_MIN_BYTES


def test_no_switch_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="INAGG_SWITCH"):
        resolve_options({}, 0, 2, MINUTE)


def test_the_groups_timeout_is_how_long_an_operation_may_take() -> None:
    assert settled(timedelta(minutes=30)).config.timeout_s == 1800


@pytest.mark.parametrize(("asked", "gets"), [(10.0, 10.0), (100.0, 60.0)])
def test_an_operation_may_be_given_less_time_but_not_more(asked: float, gets: float) -> None:
    assert settled(MINUTE, timeout_s=asked).config.timeout_s == gets


def test_the_environments_timeout_counts_if_it_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INAGG_TIMEOUT", "5")
    assert settled().config.timeout_s == 5


def test_no_wait_is_longer_than_the_groups_timeout() -> None:
    config = settled(timedelta(seconds=3)).config
    assert (config.join_timeout_s, config.reconnect_s) == (3, 3)


def test_a_rank_that_is_lost_is_not_waited_for_as_long_as_at_a_switch_of_ones_own() -> None:
    assert settled().config.rejoin_limit_s == REJOIN_LIMIT_S
    assert settled(rejoin_limit_s=0).config.rejoin_limit_s == 0


def test_the_job_is_named_after_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])
    assert settled().config.job == "train"
    monkeypatch.setenv("INAGG_JOB", "mine")
    assert settled().config.job == "mine"
    assert settled(job="other").config.job == "other"


def test_a_summary_is_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settled().summary
    for text in ("1", "yes"):
        monkeypatch.setenv("INAGG_SUMMARY", text)
        assert settled().summary


@pytest.mark.parametrize(
    ("variable", "why"),
    [
        ("INAGG_MIN_BYTES", "is no number"), ("INAGG_SUMMARY", "give 1 or 0"), ("INAGG_BLOCKING_WAIT", "give 1 or 0"),
        ("INAGG_REDUCE_SCATTER_FORMAT", "choose one of nat8"), ("INAGG_LOCAL_SIZE", "give how many ranks"),
    ],
)  # fmt: skip
def test_what_a_variable_cannot_say_is_refused(variable: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "many")
    with pytest.raises(ConfigError, match=f"{variable}.*{why}"):
        settled()


@pytest.mark.parametrize(
    "given",
    [{"min_bytes": -1}, {"min_bytes": True}, {"rank": 0}, {"workers": 2}, {"fromat": "nat8"}, {"format": "nat9"}],
    ids=str,
)
def test_options_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # ConfigError, or that of an unknown format
        settled(**given)


@pytest.mark.parametrize(
    "given", [{"window": "4"}, {"seed": 7.0}, {"min_bytes": "16"}, {"timeout_s": "60"}, {"format": 3}], ids=str
)
def test_an_option_of_another_type_is_named(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(ConfigError, match=rf"^{name} \(INAGG_\w+\) is {value!r}: give "):
        settled(**given)


def test_numbers_may_be_of_numpy() -> None:
    settings = settled(window=np.int64(4), min_bytes=np.int32(16), timeout_s=np.float32(2))
    assert (settings.config.window, settings.min_bytes, settings.config.timeout_s) == (4, 16, 2.0)


@pytest.mark.parametrize("given", [{"timeout": 60}, {"compressor": 3}], ids=str)
def test_a_state_made_with_something_else_says_what_to_give(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give a"):
        InaggState(**given)


def test_options_of_a_group_are_kept_as_given() -> None:
    options = Options(format="tern", min_bytes=0)
    assert options.options == {"format": "tern", "min_bytes": 0}
    assert options.backend == "inagg"


def test_ranks_of_the_job_are_hosts_where_hosts_sum_inside_first(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve_options({"switch": "a:1", "local_size": 4}, 6, 8, MINUTE)
    assert (settings.config.rank, settings.config.workers, settings.local_size) == (1, 2, 4)
    monkeypatch.setenv("INAGG_LOCAL_SIZE", "auto")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    settings = resolve_options({"switch": "a:1"}, 6, 8, MINUTE)
    assert (settings.config.rank, settings.config.workers, settings.local_size) == (3, 4, 2)


@pytest.mark.parametrize(
    ("ranks", "local_size"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 4), ([0, 1, 4, 5], 2), ([0, 1, 2, 3], 4), ([4, 0], 1), ([0, 1, 2], 3),
        ([0, 1, 2, 4], 1), ([7], 1), ([1, 2, 3, 4], 1), ([0, 1, 4, 5, 6, 8, 9, 10], 1),
    ],
)  # fmt: skip
def test_a_group_has_as_many_ranks_of_a_host_as_are_in_it(
    ranks: list[int], local_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INAGG_LOCAL_SIZE", "4")
    assert with_local_size({"seed": 1}, ranks) == {"seed": 1, "local_size": local_size}


def test_a_group_that_was_told_its_host_size_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INAGG_LOCAL_SIZE", "4")
    assert with_local_size({"local_size": 2}, [0, 4]) == {"local_size": 2}
    for nothing in ("", "many"):  # of a nonsense all ranks are told where options are put together
        monkeypatch.setenv("INAGG_LOCAL_SIZE", nothing)
        assert with_local_size({}, [0, 4]) == {}


@pytest.mark.parametrize("local_size", [0, -1, 3, "many", "auto", 1.0, True])
def test_a_host_size_that_cannot_be_is_refused(local_size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="local_size"):
        settled(local_size=local_size)


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = [*VARIABLES.values(), "INAGG_MIN_BYTES", "INAGG_LOCAL_SIZE", REDUCE_SCATTER_FORMAT, "INAGG_SUMMARY"]
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    unset = settled()
    for variable in variables:
        monkeypatch.setenv(variable, "")
    assert settled() == unset
    assert all(option(name, {}) is None for name in VARIABLES)
    monkeypatch.setenv("INAGG_LOCAL_SIZE", "auto")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE"):
        settled()
