"""Ranks that were configured differently hear of it when a group begins: none waits for the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from tests.host.torch.world import World
from torch.distributed.distributed_c10d import _get_default_group

from inagg_host.compress import ErrorFeedback, TopK
from inagg_host.compress.base import told
from inagg_host.config import ConfigError
from inagg_host.torch import InaggState, Options
from inagg_host.torch.inner import collect
from inagg_host.torch.job import _resolve_alike
from inagg_host.torch.options import Settings, resolve_options

DIFFERENCES: list[Any] = [
    pytest.param({"min_bytes": [100, 200]}, "rank 1 has min_bytes 200 and rank 0 100", id="min_bytes"),
    pytest.param({"format": ["nat8", "dith8"]}, "rank 1 has format 'dith8' and rank 0 'nat8'", id="format"),
    pytest.param({"policy": ["raise", "fallback"]}, "rank 1 has policy 'fallback' and rank 0 'raise'", id="policy"),
    pytest.param({"lanes": [64, None]}, "rank 1 has lanes None and rank 0 64", id="lanes"),
    pytest.param({"seed": [7, 8]}, "rank 1 has seed 8 and rank 0 7", id="seed"),
    pytest.param({"local_size": [1, 2]}, "rank 1 has local_size 2 and rank 0 1", id="local_size"),
    pytest.param(
        {"reduce_scatter_format": ["nat8", "dith8"]},
        "rank 1 has reduce_scatter_format 'dith8' and rank 0 'nat8'",
        id="reduce_scatter_format",
    ),
    pytest.param({"format": ["nat8", "nat9"]}, "nat9", id="no such format"),
    pytest.param({"reduce_scatter_format": ["nat8", ["nat8"]]}, "is ['nat8']: give the name of a format", id="a list"),
    pytest.param(
        {"policy": ["raise", "neither"]},
        "rank 1: policy (INAGG_POLICY) is 'neither': choose raise or fallback",
        id="an error",
    ),
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


def test_a_number_may_be_one_of_numpy_on_some_ranks(beside: World) -> None:
    assert beside.run(begin, {"lanes": [np.int64(64), 64], "seed": [7, np.uint32(7)]}, True) == ["no error"] * 2


def fail_on_the_last_rank() -> str:
    """What is told if resolving the options raises something that nobody thought of, on one rank."""

    def resolve() -> Settings:
        if dist.get_rank():
            raise RuntimeError("of no kind that is known")
        return resolve_options({}, 0, 2, timedelta(seconds=60))

    try:
        _resolve_alike(resolve, lambda data: collect(_get_default_group(), data), {})
    except (ConfigError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_whatever_is_raised_on_one_rank_is_an_error_on_all(beside: World) -> None:
    assert beside.run(fail_on_the_last_rank) == [
        "ConfigError: rank 1: of no kind that is known", "RuntimeError: of no kind that is known"
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("compressors", "text"),
    [
        (["dithering:s=127", "dithering:s=100"], "rank 1 has compressor 'Dithering(p=2, s=100, shared=False)'"),
        (["natural", None], "rank 1 has compressor None and rank 0 'Natural()'"),
    ],
)
def test_different_compressors_are_an_error_on_all_ranks(
    beside: World, compressors: list[str | None], text: str
) -> None:
    for heard in beside.run(begin, {"compressor": compressors}, True):
        assert text in heard


@dataclass(frozen=True)
class Own(TopK):
    """A compressor of one's own with a matrix that is each rank's own."""

    matrix: object = None


def test_what_a_compressor_has_for_each_rank_may_differ() -> None:
    one, another = (told(ErrorFeedback(Own(0.5, object()))) for _ in range(2))
    assert one == another == "ErrorFeedback(inner=Own(k=0.5))"
