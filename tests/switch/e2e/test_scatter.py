"""A reduce-scatter of real processes' arrays through a switch: each rank has the bits of an all-reduce's part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tests.switch.e2e.running import START_S, Array, Switch, gradients, wait_for_slots

from inagg_host.allreduce import AllReduce
from inagg_link.base import Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_testbed.switch_process import SwitchProcess
from inagg_wire.layout import HEADER_BYTES

RANKS = 4
DATAGRAM_BYTES = 1472
BLOCKS, LANES = 60, 1448
"""Of a piece: whole blocks, so that they have the numbers, and the noise, that they have in an all-reduce."""


@pytest.fixture(scope="module", params=["auto", "off"])
def switch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    """One that sends to a group, as it does on loopback, and one that sends to each rank."""
    folder = tmp_path_factory.mktemp("scatter")
    with Switch(folder, "--multicast", request.param, "--datagram-bytes", "1472") as running:
        yield running


def on_all(
    work: Callable[[int, AllReduce], Any],
    wrap: Callable[[Link], Link] | None = None,
    at: Callable[[int], str] | None = None,
    **options: Any,
) -> list[Any]:
    """What ``work`` returns on each rank. ``at``: the switch of a rank, if they have not all the same."""
    found: list[Any] = [None] * RANKS

    def run(rank: int) -> None:
        try:
            mine = options if at is None else options | {"switch": at(rank)}
            with AllReduce(rank=rank, workers=RANKS, wrap_link=wrap, **mine) as all_reduce:
                found[rank] = work(rank, all_reduce)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(START_S)
        assert not thread.is_alive()
    errors = [error for error in found if isinstance(error, BaseException)]
    if errors:
        raise errors[0]
    return found


def inputs() -> list[Array]:
    return [of_rank[0] for of_rank in gradients(RANKS, [RANKS * BLOCKS * LANES], 3)]


def scattered(rank: int, all_reduce: AllReduce) -> tuple[bytes, int, int]:
    """The sums of this rank's piece, the bytes that it got for them, and how many of these may have come again: on a
    busy machine there is no end to that."""
    values = inputs()[rank]
    out = np.empty(values.size // RANKS, np.float32)
    all_reduce.submit(values, out, wait=True, scatter=True).result()
    counters = all_reduce.counters
    return out.tobytes(), counters.bytes_in, counters.repeated * DATAGRAM_BYTES


@pytest.mark.parametrize("fmt", ["nat8", "dith8"])
def test_each_rank_has_its_part_of_the_sums_and_gets_no_more(switch: Switch, fmt: str) -> None:
    options: dict[str, Any] = {"switch": switch.address, "job": "scatter", "seed": 5, "format": fmt}
    whole = on_all(
        lambda rank, all_reduce: (all_reduce(inputs()[rank]).tobytes(), all_reduce.counters.bytes_in), **options
    )
    with switch.client() as client:
        wait_for_slots(client, 0)
    parts = on_all(scattered, **options)
    with switch.client() as client:
        wait_for_slots(client, 0)
    assert b"".join(sums for sums, _, _ in parts) == whole[0][0]
    for (_, got, again), (_, all_of_it) in zip(parts, whole, strict=True):
        assert got >= 0.25 * (HEADER_BYTES + LANES) * RANKS * BLOCKS
        assert got - again < (0.25 + 2 * HEADER_BYTES / DATAGRAM_BYTES) * all_of_it  # headers of all blocks


def test_losses_change_no_bit(switch: Switch) -> None:
    options: dict[str, Any] = {"switch": switch.address, "job": "lossy-scatter", "seed": 6, "format": "nat8"}
    seeds = iter(range(100))
    calm = on_all(scattered, **options)
    with switch.client() as client:
        wait_for_slots(client, 0)
    lossy = on_all(scattered, lambda link: FaultLink(link, Faults(drop=0.03), seed=next(seeds)), **options)
    with switch.client() as client:
        wait_for_slots(client, 0)
    assert [sums for sums, _, _ in lossy] == [sums for sums, _, _ in calm]


@pytest.fixture(scope="module")
def leaves() -> Iterator[list[str]]:
    """Three, below one root."""
    with ExitStack() as stack:
        root = stack.enter_context(SwitchProcess())
        names = [("--parent", root.control, "--name", f"r{i}") for i in range(3)]
        yield [stack.enter_context(SwitchProcess(*options)).control for options in names]


@pytest.mark.parametrize("fmt", ["nat8", "fix32"])
@pytest.mark.parametrize("switch", ["auto"], indirect=True)
def test_through_a_tree_too_each_rank_gets_its_part_alone(switch: Switch, leaves: list[str], fmt: str) -> None:
    """Leaves with ranks 0 and 3, 1, and 2; some datagrams are lost on the way."""
    options: dict[str, Any] = {"seed": 5, "format": fmt, "lanes": LANES if fmt == "nat8" else 240, "window": 64}
    seeds = iter(range(100))
    whole = on_all(
        lambda rank, all_reduce: all_reduce(inputs()[rank]).tobytes(), switch=switch.address, job="whole", **options
    )
    at = [*leaves, leaves[0]]
    calm = on_all(scattered, at=at.__getitem__, job=f"calm-{fmt}", **options)
    lossy = on_all(
        scattered,
        lambda link: FaultLink(link, Faults(drop=0.03), seed=next(seeds)),
        at.__getitem__,
        job=f"lossy-{fmt}",
        **options,
    )
    assert b"".join(sums for sums, _, _ in calm) == whole[0]
    assert [sums for sums, _, _ in lossy] == [sums for sums, _, _ in calm]
    payload = len(whole[0]) // (4 if fmt == "nat8" else 1)
    for _, got, again in calm:
        assert got - again < 0.35 * payload  # headers of all blocks


def test_what_cannot_be_scattered_is_refused_and_the_job_goes_on(switch: Switch) -> None:
    def work(rank: int, all_reduce: AllReduce) -> float:
        values = np.ones(RANKS * 10, np.float32)
        with pytest.raises(ValueError, match="need 4 times as many"):
            all_reduce.submit(values, np.empty(11, np.float32), scatter=True)
        with pytest.raises(ValueError, match="shares memory with the values"):
            all_reduce.submit(values, values[10 * rank + 1 :][:10] if rank < 3 else values[:10], scatter=True)
        all_reduce.submit(values, values[10 * rank :][:10], scatter=True).result()
        return float(values.sum())

    assert on_all(work, switch=switch.address, job="bad-scatter", format="fix32") == [70.0] * RANKS
