"""Ranks that were configured differently hear of it when a group begins: none waits for the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from tests.host.torch.world import World

from inagg_host.config import ConfigError
from inagg_host.torch import InaggState, Options

DIFFERENCES: list[Any] = [
    pytest.param({"min_bytes": [100, 200]}, "rank 1 has min_bytes 200 and rank 0 100", id="min_bytes"),
    pytest.param({"format": ["nat8", "dith8"]}, "rank 1 has format 'dith8' and rank 0 'nat8'", id="format"),
    pytest.param({"policy": ["raise", "fallback"]}, "rank 1 has policy 'fallback' and rank 0 'raise'", id="policy"),
    pytest.param({"lanes": [64, None]}, "rank 1 has lanes None and rank 0 64", id="lanes"),
    pytest.param({"format": ["nat8", "nat9"]}, "nat9", id="no such format"),
    pytest.param({"policy": ["raise", "neither"]}, "rank 1: policy 'neither': choose raise or fallback", id="an error"),
]


def begin(options: dict[str, list[Any]], hook: bool) -> str:
    """What this rank hears when it begins with its part of ``options``."""
    mine = {name: values[dist.get_rank()] for name, values in options.items()}
    try:
        if hook:
            InaggState(**mine).close()
        else:
            dist.destroy_process_group(dist.new_group(backend="inagg", pg_options=Options(**mine)))
    except ValueError as error:  # whichever kind the rank has that is wrong; a `ConfigError` is one
        return str(error)
    return "no error"


@pytest.mark.parametrize("hook", [False, True], ids=["group", "hook"])
@pytest.mark.parametrize(("options", "text"), DIFFERENCES)
def test_different_options_are_an_error_on_all_ranks(
    make_world: Callable[..., World], beside: World, options: dict[str, list[Any]], text: str, hook: bool
) -> None:
    for heard in beside.run(begin, options, hook):
        assert text in heard or heard in text  # the rank that is wrong needs not be told who it is


def test_options_that_need_not_be_the_same_may_differ(beside: World) -> None:
    assert beside.run(begin, {"timeout_s": [10.0, 20.0], "host": ["127.0.0.1", None]}, False) == ["no error"] * 2


def differ_by_environment() -> str:
    """A group that is joined later, in a world of our own."""
    os.environ["INAGG_MIN_BYTES"] = str(100 + dist.get_rank())
    try:
        dist.new_group()
    except ConfigError as error:
        return str(error)
    finally:
        del os.environ["INAGG_MIN_BYTES"]
    return "no error"


def test_a_group_that_joins_later_says_it_at_once_too(two: World) -> None:
    for heard in two.run(differ_by_environment):
        assert heard == "rank 1 has min_bytes 101 and rank 0 100: give all ranks the same"
