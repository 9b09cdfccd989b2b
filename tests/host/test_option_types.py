"""The options that editors and type checkers see are those that there are.

Where a call has ``# type: ignore[call-arg]`` or ``[arg-type]``, mypy refuses it: else it would complain that the
comment is of no use (``warn_unused_ignores``, which is part of ``strict``).
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import get_type_hints

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


def test_an_option_of_the_hook_is_checked_by_mypy() -> None:
    """At run time it is when there is a process group."""
    state = InaggState(fromat="nat4", switch="127.0.0.1:9")  # type: ignore[call-arg]
    assert state.options["fromat"] == "nat4"
    assert InaggState(format="nat4", min_bytes=0, local_size="auto").options["format"] == "nat4"
    with pytest.raises(AssertionError, match="init_process_group"):
        state.use(None, formats="nat4")  # type: ignore[call-arg]


def test_a_value_of_another_type_is_refused_by_mypy_and_with_what_it_should_be() -> None:
    with pytest.raises(ConfigError, match=r"^timeout_s \(INAGG_TIMEOUT\) is '300': give a number"):
        Config.from_environment(rank=0, workers=2, switch="127.0.0.1:9", timeout_s="300")  # type: ignore[arg-type]


def test_rank_and_workers_are_no_options_of_a_group() -> None:
    with pytest.raises(ConfigError, match="rank is the process group's"):
        settled(Options(switch="127.0.0.1:9", rank=0))  # type: ignore[call-arg]


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
