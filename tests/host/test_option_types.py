"""The options that editors and type checkers see are those that there are.

Where a call has ``# type: ignore[call-arg]`` or ``[arg-type]``, mypy refuses it: else it would complain that the
comment is of no use (``warn_unused_ignores``, which is part of ``strict``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from inagg_host.allreduce import AllReduce, AllReduceOptions
from inagg_host.config import Config, ConfigError, ConfigOptions, JobOptions
from inagg_host.torch import InaggState, Options, TensorAllReduce, configure
from inagg_host.torch.options import GroupOptions, Settings, resolve_options

ELSEWHERE = {"rank": 0, "workers": 2, "switch": "127.0.0.1:9"}


def settled(options: Options) -> Settings:
    return resolve_options(options.options, 0, 2, timedelta(minutes=1))


def test_options_have_the_names_and_types_of_the_configs_fields() -> None:
    fields = get_type_hints(Config)
    assert get_type_hints(ConfigOptions) == {name: kind | None for name, kind in fields.items()}
    assert get_type_hints(JobOptions).keys() == fields.keys() - {"rank", "workers"}


def test_options_of_what_passes_them_on_are_the_arguments_of_the_all_reduce() -> None:
    arguments = {p.name for p in inspect.signature(AllReduce).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert get_type_hints(AllReduceOptions).keys() == arguments | get_type_hints(ConfigOptions).keys()


def test_options_of_a_group_are_those_that_it_takes() -> None:
    given = dict.fromkeys(get_type_hints(GroupOptions), None)
    assert given.keys() >= {"format", "min_bytes", "local_size", "reduce_scatter_format"}
    resolve_options({**given, "switch": "127.0.0.1:9"}, 0, 2, timedelta(minutes=1))


def test_a_name_of_no_option_is_refused_by_mypy_and_with_what_is_near() -> None:
    near = r"^no such option: fromat\. Did you mean format\?$"
    with pytest.raises(ConfigError, match=near):
        Config.from_environment(rank=0, workers=2, switch="127.0.0.1:9", fromat="nat4")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=near):
        AllReduce(rank=0, workers=2, switch="127.0.0.1:9", fromat="nat4")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=near):
        TensorAllReduce(rank=0, workers=2, switch="127.0.0.1:9", fromat="nat4")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=near):
        settled(Options(switch="127.0.0.1:9", fromat="nat4"))  # type: ignore[call-arg]


def test_an_option_of_the_hook_is_checked_by_mypy_and_when_it_is_given() -> None:
    with pytest.raises(ConfigError, match=r"^no such option: fromat\. Did you mean format\?$"):
        InaggState(fromat="nat4", switch="127.0.0.1:9")  # type: ignore[call-arg]
    state = InaggState(format="nat4", min_bytes=0, local_size="auto")
    assert state.options["format"] == "nat4"
    with pytest.raises(ConfigError, match=r"^no such option: formats\. Did you mean format\?$"):
        state.use(None, formats="nat4")  # type: ignore[call-arg]
    assert state.options["format"] == "nat4"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("min_byte", "min_bytes"),
        ("localsize", "local_size"),
        ("compresor", "compressor"),
        ("processgroup", "process_group"),
    ],
)
def test_options_that_are_the_hooks_own_or_of_groups_are_near_too(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"^no such option: {name}\. Did you mean {near}\?$"):
        InaggState(**{name: 1})  # type: ignore[arg-type]


def test_a_name_that_is_like_none_is_answered_with_all_that_may_be_given_there() -> None:
    def told(call: Callable[..., object]) -> set[str]:
        with pytest.raises(ConfigError, match=r"^no such option: zzz\. There are ") as caught:
            call(zzz=1)
        return set(str(caught.value).partition("There are ")[2].split(", "))

    def resolved(**options: Any) -> object:
        return settled(Options(**options))

    def parameters(made: type) -> set[str]:
        return {p.name for p in inspect.signature(made).parameters.values() if p.kind is not p.VAR_KEYWORD}

    of_groups = set(get_type_hints(GroupOptions))
    assert told(resolved) == of_groups
    assert told(InaggState) == of_groups | parameters(InaggState)
    assert told(AllReduce) == told(TensorAllReduce) == set(get_type_hints(AllReduceOptions))


def test_a_value_of_another_type_is_refused_by_mypy_and_with_what_it_should_be() -> None:
    with pytest.raises(ConfigError, match=r"^timeout_s \(INAGG_TIMEOUT\) is '300': give a number"):
        Config.from_environment(rank=0, workers=2, switch="127.0.0.1:9", timeout_s="300")  # type: ignore[arg-type]


def test_rank_and_workers_are_no_options_of_a_group() -> None:
    with pytest.raises(ConfigError, match="rank is the process group's"):
        settled(Options(switch="127.0.0.1:9", rank=0))  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="workers is the process group's"):
        InaggState(switch="127.0.0.1:9", workers=2)  # type: ignore[call-arg]


def test_what_configure_takes_is_checked_by_mypy() -> None:
    try:
        configure(timeout="5", switch="127.0.0.1:9")  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match=r"^no such option: timeout\. Did you mean timeout_s\?$"):
            settled(Options())
    finally:
        configure()


def test_a_name_that_is_like_none_is_answered_with_all() -> None:
    with pytest.raises(ConfigError, match=r"^no such option: zzz\. There are switch, rank, workers, job, .*, secret$"):
        Config.from_environment(**{**ELSEWHERE, "zzz": 1})  # type: ignore[arg-type]
