"""The policy "fallback": what the switch had begun, and what comes after, is done by a group of Gloo."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import LARGE, digest, equal
from tests.host.torch.world import World
from tests.switch.background import BackgroundServer

from inagg_host.torch import InaggGroup, InaggState, Options
from inagg_host.torch.inner import ArrayGroup
from inagg_switch.service.server import ControlServer
from inagg_switch.software.software_driver import SoftwareConfig, SoftwareDriver


@pytest.fixture
def mortal() -> Iterator[tuple[SoftwareDriver, BackgroundServer]]:
    """A switch for one test, which may end it."""
    driver = SoftwareDriver(SoftwareConfig(slots=256))
    with BackgroundServer(ControlServer(driver, "127.0.0.1:0")) as server:
        yield driver, server
    driver.close()


def use_arrays() -> tuple[list[int], str, str]:
    rank = dist.get_rank()
    store = dist.PrefixStore("arrays/", dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
    group = ArrayGroup(store, rank, dist.get_world_size(), dist.distributed_c10d.default_pg_timeout)
    sizes = [len(data) for data in group.gather(b"x" * (5 * rank))] + [len(data) for data in group.gather(b"")]
    contents = group.gather(bytes([rank]) * 3)
    data = np.full(1000, rank, np.uint8)
    group.broadcast(data, 1)
    values = np.full(1000, 1.0 + rank)
    group.all_reduce(values)
    group.close()
    return sizes, repr(contents), repr((data.min(), data.max(), values.min(), values.max()))


def test_arrays_over_gloo(beside: World) -> None:
    sizes, contents, values = equal(beside.run(use_arrays))
    assert sizes == [0, 5, 0, 0]
    assert contents == repr([b"\0\0\0", b"\1\1\1"])
    assert values == repr((np.uint8(1), np.uint8(1), np.float64(3), np.float64(3)))


KEPT: dict[str, InaggGroup | InaggState] = {}
"""What a rank keeps from one call to the next."""


def begin(switch: str) -> list[float]:
    options = Options(switch=switch, policy="fallback", reconnect_s=1.0, heartbeat_limit_s=1.0, window=16)
    group = dist.new_group(backend="inagg", pg_options=options)
    assert isinstance(group, InaggGroup)
    KEPT["group"] = group
    values = torch.ones(LARGE)
    dist.all_reduce(values, group=group)
    return [float(values[0])]


def go_on() -> tuple[str, dict[str, int]]:
    group = KEPT["group"]
    assert isinstance(group, InaggGroup)
    tensors = [torch.full((LARGE,), 1.0 + dist.get_rank()) for _ in range(3)]
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()
    inner = group.counters.inner
    dist.destroy_process_group(group)
    assert all((tensor == 3).all() for tensor in tensors)
    return digest(*tensors), inner


def test_sums_go_on_without_the_switch(beside: World, mortal: tuple[SoftwareDriver, BackgroundServer]) -> None:
    driver, server = mortal
    assert equal(beside.run(begin, server.address)) == [2.0]
    server.stop()
    driver.close()
    _, inner = equal(beside.run(go_on))
    assert inner == {"switch-unavailable": 3}


def fail_and_stay() -> float:
    """After how long rank 1 hears of rank 0, which fails, destroys its group, and lives on."""
    limit = timedelta(seconds=30)
    group: Any = dist.new_group(
        backend="inagg", timeout=limit, pg_options=Options(min_bytes=0, policy="fallback", reconnect_s=1.0)
    )
    values = torch.zeros(LARGE)
    dist.all_reduce(values, group=group)
    began_s = time.monotonic()
    try:
        if dist.get_rank() == 0:
            raise KeyError("a bad batch")
        dist.all_reduce(values, group=group)
    except (KeyError, RuntimeError):
        took_s = time.monotonic() - began_s
        dist.destroy_process_group(group)
    dist.barrier()
    return took_s


def test_a_rank_that_fails_and_lives_on_is_missing_in_the_inner_group_too(beside: World) -> None:
    assert max(beside.run(fail_and_stay)) < 15
