"""Which number format the sums of a process group go in."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.names import reduce_scatter_single
from tests.host.torch.ranks import LARGE, digest, equal
from tests.host.torch.world import World

from inagg_host.config import ConfigError
from inagg_host.stats import Counters
from inagg_host.torch import InaggGroup, Options, exact, lossy
from inagg_host.torch.formats import in_force

EXACT_BOUND = 2.0**-23
"""Of the error of two ranks' fix32, relative to the largest magnitude: 2 * 2^-28 (`formats.EXACT`), and what float32
rounds the sum by."""


def noise(rank: int, size: int = 4 * LARGE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank))


def error_of(sums: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest error, relative to the largest magnitude of what was summed (4.4 in `noise`) at least."""
    return float((sums.double() - wanted).abs().max() / 4)


def sums_in_blocks() -> tuple[dict[str, float], list[str], str]:
    """Errors of sums by where they were asked for, the formats that there are jobs in, and the sums."""
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16))
    assert isinstance(group, InaggGroup)
    values = noise(dist.get_rank())
    wanted = noise(0).double() + noise(1).double()
    results = {}
    results["default"] = values.clone()
    dist.all_reduce(results["default"], group=group)
    with lossy("nat8"):
        results["lossy"] = values.clone()
        dist.all_reduce(results["lossy"], group=group)
        with exact():
            results["exact within"] = values.clone()
            dist.all_reduce(results["exact within"], group=group)
    results["after"] = values.clone()
    dist.all_reduce(results["after"], group=group)
    formats = sorted(job.settings.config.format for job in group.jobs._all())
    carried = group.counters.operations
    dist.destroy_process_group(group)
    assert carried == 4
    return {name: error_of(sums, wanted) for name, sums in results.items()}, formats, digest(*results.values())


def test_a_process_group_sums_in_the_most_exact_format_but_in_blocks_that_ask_for_another(two: World) -> None:
    errors, formats, _ = equal(two.run(sums_in_blocks))
    assert formats == ["fix32", "nat8"]
    assert errors.pop("lossy") > 1e-3
    assert max(errors.values()) < EXACT_BOUND


def scattered(**options: Any) -> tuple[float, float]:
    """Errors of an all-reduce and of a reduce-scatter of a group with ``options``."""
    rank, n = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, **options))
    wanted = noise(0).double() + noise(1).double()
    whole, part = noise(rank), torch.empty(4 * LARGE // n)
    reduce_scatter_single(part, whole, group=group)
    dist.all_reduce(whole, group=group)
    dist.destroy_process_group(group)
    mine = wanted[rank * part.numel() : (rank + 1) * part.numel()]
    return error_of(whole, wanted), error_of(part, mine)


def scattered_with_a_format_of_its_own() -> tuple[float, float]:
    return scattered(reduce_scatter_format="nat8")


def scattered_in_the_groups_format() -> tuple[float, float]:
    return scattered(format="nat8")


def test_reduce_scatters_can_have_a_format_of_their_own(two: World) -> None:
    for whole, part in two.run(scattered_with_a_format_of_its_own):
        assert whole < EXACT_BOUND
        assert part > 1e-3
    for whole, part in two.run(scattered_in_the_groups_format):
        assert min(whole, part) > 1e-3


def float64() -> tuple[list[float], dict[str, int]]:
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16))
    assert isinstance(group, InaggGroup)
    values = torch.full((LARGE,), 1 + 2.0**-52, dtype=torch.float64)
    dist.all_reduce(values, group=group)
    inner = dict(group.counters.inner)
    with lossy("nat8"):
        ones = torch.ones(LARGE, dtype=torch.float64)
        dist.all_reduce(ones, group=group)
    assert group.counters.operations == 1
    dist.destroy_process_group(group)
    return [float(values[0]), float(ones[0])], inner


def test_float64_goes_to_the_inner_group_unless_a_lossy_format_is_asked_for(two: World) -> None:
    (value, one), inner = equal(two.run(float64))
    assert value == 2 + 2.0**-51
    assert one == 2.0
    assert inner == {"exact-float64": 1}


def test_a_block_ends_with_what_ended_it() -> None:
    def fails() -> None:
        with lossy("nat4"):
            assert in_force() == "nat4"
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert in_force() is None


def test_a_block_holds_for_its_thread_and_for_those_that_python_did_not_start() -> None:
    found, asked = dict[str, str | None](), threading.Event()

    def ask(name: str) -> None:
        found[name] = in_force()
        asked.set()

    def other() -> None:
        ask("before")
        with exact():
            ask("within")
            begun.set()
            end.wait()

    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with lossy("nat8"):
        thread.start()
        begun.wait()
        assert in_force() == "nat8"
        asked.clear()
        _thread.start_new_thread(ask, ("foreign",))  # as autograd's, which `threading` does not know
        assert asked.wait(10.0)
    assert in_force() is None
    asked.clear()
    _thread.start_new_thread(ask, ("later",))
    assert asked.wait(10.0)
    end.set()
    thread.join()
    # The block that began last is no better a guess than another, but one of those that there are.
    assert found == {"before": None, "within": "fix32", "foreign": "fix32", "later": "fix32"}


@pytest.mark.parametrize(("name", "words"), [("nat7", "no format 'nat7'"), ("fix32", r"use exact\(\)")])
def test_a_block_of_no_lossy_format_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        lossy(name)
    assert in_force() is None


def wrong_format() -> str:
    with pytest.raises(ValueError, match="nat7") as caught:
        dist.new_group(backend="inagg", pg_options=Options(reduce_scatter_format="nat7"))
    return str(caught.value)


def test_an_unknown_format_of_reduce_scatters_is_refused(two: World) -> None:
    assert "no format 'nat7'" in equal(two.run(wrong_format))


def test_counters_of_two_jobs_add_up() -> None:
    one = Counters(operations=1, resent=2, rtt_s=0.5, rtt_least_s=0.25, inner={"small": 1})
    two = Counters(operations=4, rtt_s=0.125, inner={"small": 2, "sparse": 1})
    both = one + two
    assert (both.operations, both.resent, both.rtt_s, both.rtt_least_s) == (5, 2, 0.5, 0.25)
    assert both.inner == {"small": 3, "sparse": 1}
