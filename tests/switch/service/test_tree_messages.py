"""What switches of a tree tell each other arrives as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.switch.aggregation.world import make_binding
from tests.switch.control.world import LIMITS

from inagg_switch.binding import Binding, Place, Uplink
from inagg_switch.driver import BY_RANK, COUNTED, TOTALS, Counters, JobCounters, Limits, Shard, SlotWait
from inagg_switch.service.tree_messages import (
    binding_from,
    binding_message,
    hello_message,
    look_from,
    look_message,
    switch_from,
)
from inagg_wire.errors import Reason
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.noise_keys import BlockKey

PARENT = ("10.0.0.1", 47101)
SHARDS = (Shard(("10.0.0.2", 47101), 1024, "239.255.0.0/16"), Shard(("0.0.0.0", 47102), 1024, None, True))


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, scatters=True, window=64, receive_bytes=1 << 20),
        replace(LIMITS, scatters=False, window=None, receive_bytes=None),
    ],
    ids=["known", "unknown"],
)
def test_what_a_switch_is_and_can_serve(limits: Limits) -> None:
    switch = switch_from(hello_message("rack0", SHARDS, limits, "10.0.0.3"), "root", "ipv4:10.0.0.9:5")
    assert (switch.name, switch.parent) == ("rack0", "root")
    assert switch.shards == (SHARDS[0], replace(SHARDS[1], address=("10.0.0.3", 47102)))
    assert switch.limits == Limits(
        limits.formats, CHILDREN_MAX, limits.lanes, limits.datagram_bytes, 1024, scatters=limits.scatters,
        window=limits.window, receive_bytes=limits.receive_bytes,
    )  # fmt: skip


WORKERS = Place(2, uplink=Uplink(PARENT, 8, 2, BlockKey(3, 5)), child_of=(0, 1))
SWITCHES = Place(7, from_switches=True, parts=2)


@pytest.mark.parametrize("place", [WORKERS, SWITCHES], ids=["of workers", "of switches"])
@pytest.mark.parametrize("changes", [{}, {"group": ("239.255.0.1", 47101), "scatters": True, "resume_block": 1 << 40}])
def test_an_order_to_bind(place: Place, changes: dict[str, object]) -> None:
    binding: Binding = replace(make_binding(7, base=4), place=place, **changes)  # type: ignore[arg-type]
    assert binding_from(binding_message(binding), PARENT) == binding


def test_what_a_shard_shows() -> None:
    counts = Counters(**{name: number for number, name in enumerate(COUNTED, 1)})  # type: ignore[arg-type]
    counts.drops, counts.link_drops = {Reason.TOO_SHORT: 3}, {"not-for-us": 4}
    counts.faults = {"dropped": 5}
    job: dict[str, Any] = {name: [10 * number, 10 * number + 1] for number, name in enumerate(BY_RANK, 1)}
    job |= {name: 100 + number for number, name in enumerate(TOTALS)}
    counts.jobs = {7: JobCounters(**job)}
    waits = {7: (9, [SlotWait(3, 2, (0, 5), 1.5), SlotWait(4, 2, (), 0.5)])}
    assert look_from(look_message(SHARDS[0], counts, waits)) == (counts, waits)
