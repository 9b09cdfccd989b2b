"""How datagrams are grouped into batches, and how much room there is for what they cause, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_link.base import MAX_BATCH_DATAGRAMS
from inagg_switch.aggregation import aggregator as module
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.model import Model, Output
from inagg_switch.aggregation.runs import RUN_BYTES
from inagg_switch.binding import Address, Binding
from inagg_wire.layout import HEADER_BYTES, Op

from .hostile import put, valid
from .pair import Pair, feed, in_order
from .world import make_binding, make_contribution, simple_contribution

TINY = make_binding(1, "tern", n=2, lanes=32, slots=64)
"""Contributions of 32 bytes, results of 40."""
SCATTERED = replace(TINY, scatters=True)


def traffic(binding: Binding, seed: int, count: int) -> list[tuple[bytes, Address]]:
    """Equal datagrams: contributions of all ranks to few blocks, some of them damaged."""
    rng = np.random.default_rng(seed)
    chosen: list[tuple[bytes, Address]] = []
    size = binding.contribution_bytes(Op.SUM)
    while len(chosen) < count:
        datagram = valid(rng, binding, 2 * binding.lease.slots)
        if len(datagram) != size:
            continue
        if rng.random() < 0.2:
            name = str(rng.choice(["token", "slot", "job", "magic", "generation", "kind", "lanes"]))
            datagram = put(datagram, name, int(rng.integers(1 << 16)))
        chosen.append((datagram, binding.children[int(rng.integers(len(binding.children)))]))
    return chosen


def through(aggregator: Aggregator, packets: Sequence[tuple[bytes, Address]], sizes: Sequence[int]) -> list[Output]:
    """Feed ``packets`` in batches of at most the given sizes in turn; a batch ends where the source changes."""
    sent: list[Output] = []
    at, turn = 0, 0
    while at < len(packets):
        source, end = packets[at][1], at
        while end < len(packets) and packets[end][1] == source and end - at < sizes[turn % len(sizes)]:
            end += 1
        sent += feed(aggregator, [data for data, _ in packets[at:end]], source)
        at, turn = end, turn + 1
    return sent


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    fmt=st.sampled_from(["nat8", "nat4", "tern", "dith8-exact", "fix32"]),
    n=st.sampled_from([1, 2, 3, 8]),
    scatters=st.booleans(),
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=8),
)
def test_any_grouping_into_batches_gives_the_same(
    seed: int, fmt: str, n: int, scatters: bool, sizes: list[int]
) -> None:
    binding = make_binding(1, fmt, n, lanes=32, slots=4, scatters=scatters)
    packets = sorted(traffic(binding, seed, 120), key=lambda packet: packet[1])  # long runs of one source
    one, many = Aggregator(8, 32, 2), Aggregator(8, 32, 2)
    for aggregator in (one, many):
        aggregator.bind(binding)
    assert in_order(through(many, packets, sizes)) == in_order(through(one, packets, [1]))
    assert many.counters() == one.counters()
    for a, b in zip(many._slots, one._slots, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_more_datagrams_than_one_call_sends_gives_runs_that_one_call_can_send() -> None:
    aggregator = Aggregator(64, 32, 1)
    aggregator.bind(TINY)
    blocks = [simple_contribution(TINY, 0, block) for block in range(64)]
    assert feed(aggregator, blocks, TINY.children[0]) == []
    data = np.frombuffer(bytearray(b"".join(blocks + blocks)), np.uint8)  # 64 results, then 64 resends
    sends = [(s.data.size // s.size, s.to) for s in aggregator.receive(data, len(blocks[0]), TINY.children[1], 0.0)]
    assert sends == [(64, TINY.children), (64, TINY.children[1:])]
    sends = [(s.data.size // s.size, s.to) for s in aggregator.receive(data, len(blocks[0]), TINY.children[1], 0.0)]
    assert sends == [(MAX_BATCH_DATAGRAMS, TINY.children[1:])] * 2


def test_results_for_one_rank_are_a_run_and_their_acknowledgements_another() -> None:
    aggregator = Aggregator(64, 32, 1)
    binding = make_binding(1, "tern", n=3, lanes=32, slots=64, scatters=True)
    aggregator.bind(binding)
    blocks = [simple_contribution(binding, 0, block, owner=1 + block // 30) for block in range(64)]
    for rank in (0, 1):
        assert feed(aggregator, blocks, binding.children[rank]) == []
    data = np.frombuffer(bytearray(b"".join(blocks)), np.uint8)
    sends = [
        (s.size, s.data.size // s.size, [binding.children.index(address) for address in s.to])
        for s in aggregator.receive(data, len(blocks[0]), binding.children[2], 0.0)
    ]
    assert sends == [(40, 30, [0]), (24, 30, [1, 2]), (40, 30, [1]), (24, 30, [0, 2]), (40, 4, [2]), (24, 4, [0, 1])]


def test_a_run_is_never_longer_than_a_udp_datagram() -> None:
    binding = make_binding(1, "dith8-exact", n=1, lanes=16000, slots=8)  # results of 32 kB, contributions of half that
    aggregator = Aggregator(8, 16000, 1)
    aggregator.bind(binding)
    blocks = [simple_contribution(binding, 0, block) for block in range(8)]
    data = np.frombuffer(bytearray(b"".join(blocks)), np.uint8)
    sizes = [s.data.size for s in aggregator.receive(data, len(blocks[0]), binding.children[0], 0.0)]
    assert sum(sizes) == 8 * 32024
    assert max(sizes) <= RUN_BYTES


@pytest.mark.parametrize(
    ("binding", "runs", "room"),
    [
        *((TINY, runs, room) for runs in (1, 2, 3, 256) for room in (40, 41, 79, 80, 100, 1000, 1 << 18)),
        *((SCATTERED, runs, room) for runs in (2, 3, 4, 256) for room in (64, 65, 88, 127, 128, 1000, 1 << 18)),
    ],
)
def test_an_output_buffer_of_any_size_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, binding: Binding, runs: int, room: int
) -> None:
    monkeypatch.setattr(module, "OUT_RUNS", runs)
    monkeypatch.setattr(module, "OUT_BYTES", room)
    aggregator, model = Aggregator(64, 32, 1), Model()
    aggregator.bind(binding)
    model.bind(binding)
    packets = sorted(traffic(binding, runs, 400), key=lambda packet: packet[1])
    want = [output for data, source in packets for output in model.receive(data, source)]
    assert in_order(through(aggregator, packets, [200])) == in_order(want)
    assert aggregator.counters() == model.counters
    assert sum(len(output.data) for output in want) > 1000


def test_thousands_of_tiny_datagrams_in_one_batch_lose_nothing() -> None:
    """64 KB of the smallest contributions that are answered, in turn by a result and by a notice: a run for each."""
    binding = make_binding(1, "tern", n=1, lanes=32, slots=4096)
    pair = Pair(slots=4096, lanes=32)
    pair.bind(binding)
    batch = []
    for block in range(1020):
        good = simple_contribution(binding, 0, block)
        batch += [good, put(good, "token", 5)]
    assert len(batch) * len(batch[0]) <= 65535
    outputs = pair.receive(batch, binding.children[0])
    assert [len(output.data) for output in outputs] == [40, HEADER_BYTES] * 1020
    assert len(outputs) > 4 * module.OUT_RUNS
    pair.check()


def test_results_four_times_as_large_as_contributions_all_leave() -> None:
    """tern for more than 7 workers: 2 bits up, 8 bits down; a full batch nearly fills the output buffer."""
    binding = make_binding(1, "tern", n=8, lanes=1448, slots=512)
    pair = Pair(slots=512, lanes=1448)
    pair.bind(binding)
    size = len(simple_contribution(binding, 0, 0))
    blocks = range(65535 // size)
    for rank, source in enumerate(binding.children):
        outputs = pair.receive([simple_contribution(binding, rank, block) for block in blocks], source)
    assert len(outputs) == len(blocks)
    assert sum(len(output.data) for output in outputs) > 3 * 65535


def test_what_is_no_whole_number_of_datagrams_is_refused_and_not_counted() -> None:
    aggregator = Aggregator(64, 32, 1)
    with pytest.raises(ValueError, match="65 bytes are no whole number of datagrams of 32 bytes"):
        list(aggregator.receive(np.zeros(65, np.uint8), 32, TINY.children[0], 0.0))
    assert aggregator.counters().datagrams_in == 0


def test_a_batch_may_start_at_any_address() -> None:
    binding = make_binding(1, "fix32", n=1, lanes=32)
    model = Model()
    model.bind(binding)
    codes = np.arange(32).astype(np.uint32)
    datagram = make_contribution(binding, 0, codes)
    want = [output.data for output in model.receive(datagram, binding.children[0])]
    for offset in range(9):
        aggregator = Aggregator(64, 32, 1)
        aggregator.bind(binding)
        space = np.zeros(len(datagram) + 16, np.uint8)
        view = space[offset : offset + len(datagram)]
        view[:] = np.frombuffer(datagram, np.uint8)
        got = [send.data.tobytes() for send in aggregator.receive(view, len(datagram), binding.children[0], 0.0)]
        assert got == want
