"""Seeded faults: at their rates, repeatable, and nothing vanishes uncounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.link.memory import ManualClock, MemoryLink, MemoryNetwork

from inagg_link.base import MAX_BATCH_DATAGRAMS, Batch
from inagg_link.fault_link import FaultLink
from inagg_link.fault_model import Arrival, FaultModel
from inagg_link.faults import Faults

PEER = ("10.0.0.9", 9)
SIZE = 16


def numbered(count: int, first: int = 0) -> Batch:
    """Datagrams that hold their number."""
    data = np.zeros((count, SIZE), np.uint8)
    data[:, :4] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(count, 4)
    return Batch(data.reshape(-1), SIZE, PEER)


def numbers(batches: Iterable[Batch]) -> list[int]:
    return [int.from_bytes(row[:4].tobytes()) for batch in batches for row in batch.datagrams]


def run(model: FaultModel, count: int, batch: int = 44) -> list[Arrival]:
    """What becomes of `count` numbered datagrams that enter in batches, one each second."""
    return [
        arrival
        for start in range(0, count, batch)
        for arrival in model.apply(numbered(min(batch, count - start), start), float(start // batch))
    ]


def arrived(arrivals: list[Arrival]) -> list[int]:
    """Numbers in the order of their arrival."""
    return numbers(arrival.batch for arrival in sorted(arrivals, key=lambda arrival: arrival.time_s))


# --- the model ---


def test_without_faults_a_batch_passes_untouched() -> None:
    batch = numbered(44)
    (arrival,) = FaultModel(Faults(), 1).apply(batch, 5.0)
    assert arrival.batch is batch
    assert arrival.time_s == 5.0


def test_dropped_datagrams_do_not_arrive() -> None:
    model = FaultModel(Faults(drop=0.1), 1)
    got = arrived(run(model, 1000))
    assert got == sorted(set(got))
    assert 1000 - len(got) == model.counters.dropped == 103  # exactly, for this seed


def test_everything_can_be_dropped() -> None:
    assert run(FaultModel(Faults(drop=1.0), 1), 1000) == []


def test_a_duplicate_arrives_right_behind_its_original() -> None:
    model = FaultModel(Faults(duplicate=0.1), 2)
    arrivals = run(model, 1000)
    got = arrived(arrivals)
    assert got == sorted(got)
    assert Counter(Counter(got).values()) == {1: 1000 - model.counters.duplicated, 2: model.counters.duplicated}
    assert model.counters.duplicated == 107
    assert all(len(arrival.batch) <= MAX_BATCH_DATAGRAMS for arrival in arrivals)


def test_a_batch_that_doubles_is_cut_to_what_one_call_takes() -> None:
    arrivals = FaultModel(Faults(duplicate=1.0), 2).apply(numbered(44), 0.0)
    assert [len(arrival.batch) for arrival in arrivals] == [64, 24]


def test_a_late_duplicate_arrives_after_later_datagrams() -> None:
    model = FaultModel(Faults(duplicate=0.05, duplicate_s=10.0), 3)
    arrivals = run(model, 1000)
    originals = {arrival.time_s for arrival in arrivals if arrival.time_s == int(arrival.time_s)}
    late = [arrival for arrival in arrivals if arrival.time_s not in originals]
    assert len(late) == model.counters.duplicated > 0
    entered_s = [numbers([arrival.batch])[0] // 44 for arrival in late]
    delays = [arrival.time_s - at for arrival, at in zip(late, entered_s, strict=True)]
    assert min(delays) > 0.0
    assert 8.0 < max(delays) < 10.0


def test_a_reordered_datagram_is_overtaken() -> None:
    model = FaultModel(Faults(reorder=0.05, reorder_s=3.0), 4)
    got = arrived(run(model, 1000))
    assert sorted(got) == list(range(1000))
    assert got != sorted(got)
    assert model.counters.reordered == 47


def test_delay_holds_everything_back_in_order() -> None:
    arrivals = run(FaultModel(Faults(delay_s=0.25), 5), 100)
    assert [arrival.time_s for arrival in arrivals] == [0.25, 1.25, 2.25]
    assert arrived(arrivals) == list(range(100))


def test_jitter_lets_batches_overtake_but_keeps_them_whole() -> None:
    arrivals = run(FaultModel(Faults(jitter_s=5.0), 6), 440)
    times = [arrival.time_s - second for second, arrival in enumerate(arrivals)]
    assert 0.0 <= min(times) < max(times) < 5.0
    assert arrived(arrivals) != list(range(440))
    assert all(len(arrival.batch) == 44 for arrival in arrivals)


@pytest.mark.parametrize("reorder", [0.0, 0.5])
def test_what_arrives_later_has_memory_of_its_own(reorder: float) -> None:
    model = FaultModel(Faults(delay_s=1.0, reorder=reorder), 7)
    batch = numbered(44)
    arrivals = model.apply(batch, 0.0)
    batch.data[:] = 255
    assert sorted(numbers(arrival.batch for arrival in arrivals)) == list(range(44))


def test_a_corrupted_datagram_is_discarded_as_the_checksum_would() -> None:
    model = FaultModel(Faults(corrupt=0.1), 8)
    got = arrived(run(model, 1000))
    assert got == sorted(set(got))
    assert model.counters.corrupted == model.counters.discarded == 1000 - len(got) == 104


@pytest.mark.parametrize("bits", [1, 3])
def test_without_checksum_a_corrupted_datagram_arrives_with_flipped_bits(bits: int) -> None:
    model = FaultModel(Faults(corrupt=0.1, corrupt_bits=bits, checksum=False), 8)
    wrong = 0
    for start in range(0, 1000, 50):
        batch = numbered(50, start)
        before = batch.data.tobytes()
        (arrival,) = model.apply(batch, 0.0)
        assert batch.data.tobytes() == before  # the caller's buffer stays as it was
        flipped = np.bitwise_count(arrival.batch.datagrams ^ batch.datagrams).sum(axis=1)
        assert set(flipped) <= {0, *range(bits % 2 or 2, bits + 1, 2)}
        wrong += int((flipped > 0).sum())
    assert model.counters.corrupted == wrong == 104
    assert model.counters.discarded == 0


def test_every_bit_can_be_flipped() -> None:
    model = FaultModel(Faults(corrupt=1.0, checksum=False), 9)
    flipped = np.zeros(SIZE * 8, np.int64)
    for _ in range(60):
        (arrival,) = model.apply(Batch(np.zeros(44 * SIZE, np.uint8), SIZE, PEER), 0.0)
        flipped += np.unpackbits(arrival.batch.datagrams, axis=1).sum(axis=0, dtype=np.int64)
    assert flipped.min() > 0
    assert flipped.sum() == 60 * 44


faults = st.builds(
    Faults,
    drop=st.sampled_from([0.0, 0.05, 1.0]),
    corrupt=st.sampled_from([0.0, 0.1]),
    duplicate=st.sampled_from([0.0, 0.2, 1.0]),
    reorder=st.sampled_from([0.0, 0.3, 1.0]),
    checksum=st.booleans(),
    duplicate_s=st.sampled_from([0.0, 2.0]),
    reorder_s=st.sampled_from([0.0, 0.5]),
    delay_s=st.sampled_from([0.0, 1.0]),
    jitter_s=st.sampled_from([0.0, 1.0]),
)


@given(faults=faults, seed=st.integers(0, 2**64 - 1), sizes=st.lists(st.integers(1, 64), max_size=8))
def test_every_datagram_arrives_or_is_counted(faults: Faults, seed: int, sizes: list[int]) -> None:
    model = FaultModel(faults, seed)
    arrivals = [a for second, size in enumerate(sizes) for a in model.apply(numbered(size), float(second))]
    counters = model.counters
    assert counters.entered == sum(sizes)
    assert counters.left == sum(len(arrival.batch) for arrival in arrivals)
    assert counters.entered + counters.duplicated == counters.left + counters.dropped + counters.discarded
    assert all(0 < len(arrival.batch) <= MAX_BATCH_DATAGRAMS for arrival in arrivals)
    assert all(arrival.batch.peer == PEER and arrival.batch.size == SIZE for arrival in arrivals)


MIXED = Faults(drop=0.1, corrupt=0.1, duplicate=0.1, reorder=0.1, checksum=False, duplicate_s=0.1)


def test_the_same_seed_gives_the_same_faults() -> None:
    def outcome(seed: int) -> list[tuple[float, bytes]]:
        return [(a.time_s, a.batch.data.tobytes()) for a in run(FaultModel(MIXED, seed), 500)]

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_the_fate_of_a_datagram_does_not_depend_on_how_it_was_batched() -> None:
    def outcome(batch: int) -> list[tuple[float, bytes]]:
        model = FaultModel(MIXED, 3)
        arrivals = [a for s in range(0, 528, batch) for a in model.apply(numbered(batch, s), 0.0)]
        return sorted((a.time_s, row.tobytes()) for a in arrivals for row in a.batch.datagrams)

    assert outcome(1) == outcome(44) == outcome(48)


@pytest.mark.parametrize("kind", ["drop", "corrupt", "duplicate", "reorder"])
def test_faults_keep_their_rate(kind: str) -> None:
    model = FaultModel(Faults(**{kind: 0.01}), 10)  # type: ignore[arg-type]
    run(model, 44_000)
    name = {"drop": "dropped", "corrupt": "corrupted", "duplicate": "duplicated", "reorder": "reordered"}[kind]
    assert getattr(model.counters, name) == pytest.approx(440, abs=84)  # four standard deviations


def test_faults_are_independent_of_one_another() -> None:
    both = arrived(run(FaultModel(Faults(drop=0.1, duplicate=0.1), 11), 1000))
    only = arrived(run(FaultModel(Faults(drop=0.1), 11), 1000))
    assert sorted(set(both)) == only


@pytest.mark.parametrize(
    "wrong",
    [{"drop": 1.1}, {"reorder": -0.1}, {"delay_s": -1.0}, {"jitter_s": float("inf")}, {"corrupt_bits": 0}],
)
def test_what_is_no_probability_or_time_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)  # type: ignore[arg-type]


def test_the_representation_names_what_was_asked_for_and_the_seed() -> None:
    assert repr(FaultModel(Faults(drop=0.05), 12)) == "FaultModel(Faults(drop=0.05), seed=12)"


# --- the link ---


class World:
    """Two links in memory, the first behind faults, and their clock."""

    def __init__(self, faults: Faults, **options: object) -> None:
        self.clock = ManualClock()
        network = MemoryNetwork(clock=self.clock)
        self.inner: MemoryLink = network.link(("10.0.0.1", 1))
        self.other: MemoryLink = network.link(PEER)
        self.link = FaultLink(self.inner, faults, 1, clock=self.clock, **options)  # type: ignore[arg-type]

    def heard(self) -> list[int]:
        return numbers(self.other.receive(0.0))


def test_sent_and_received_batches_meet_faults_of_their_own() -> None:
    world = World(Faults(drop=0.5))
    assert world.link.send(numbered(44)) == 44
    sent = world.heard()
    world.other.send(Batch(numbered(44).data, SIZE, world.link.address))
    received = numbers(world.link.receive(0.0))
    assert 0 < len(sent) < 44
    assert 0 < len(received) < 44
    assert sent != received


@pytest.mark.parametrize("direction", ["send", "receive"])
def test_faults_can_be_kept_to_one_direction(direction: str) -> None:
    world = World(Faults(drop=1.0), directions=[direction])
    world.link.send(numbered(44))
    world.other.send(Batch(numbered(44).data, SIZE, world.link.address))
    heard = {"send": len(world.heard()), "receive": len(numbers(world.link.receive(0.0)))}
    assert heard == {"send": 44, "receive": 44} | {direction: 0}


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="sideways"):
        World(Faults(), directions=["sideways"])


def test_a_delayed_send_goes_out_when_the_link_is_used_after_its_time() -> None:
    world = World(Faults(delay_s=1.0))
    world.link.send(numbered(3))
    assert world.heard() == []
    assert world.link.next_due_s == 1.0
    world.clock.advance(0.5)
    world.link.receive(0.0)
    assert world.heard() == []
    world.clock.advance(0.5)
    world.link.receive(0.0)
    assert world.heard() == [0, 1, 2]
    assert world.link.next_due_s is None


def test_receive_waits_no_longer_than_until_the_next_is_due() -> None:
    world = World(Faults(delay_s=1.0))
    world.other.send(Batch(numbered(3).data, SIZE, world.link.address))
    assert world.link.receive(5.0) == []  # arrived, and held
    assert numbers(world.link.receive(5.0)) == [0, 1, 2]
    assert world.clock() == 1.0


def test_held_datagrams_leave_in_the_order_of_their_times() -> None:
    world = World(Faults(reorder=0.5, reorder_s=1.0))
    world.link.send(numbered(44))
    first = world.heard()
    world.clock.advance(1.0)
    world.link.receive(0.0)
    second = world.heard()
    while more := world.heard():
        second += more
    assert sorted(first + second) == list(range(44))
    assert first == sorted(first)
    assert second != sorted(second)


def test_each_of_many_peers_meets_faults_of_its_own() -> None:
    world = World(Faults(drop=0.5))
    world.link.send_many(numbered(44).data, SIZE, [PEER, PEER])
    one, other = (numbers([batch]) for batch in world.other.receive(0.0))
    assert one != other


def test_what_is_held_when_the_link_closes_is_lost() -> None:
    world = World(Faults(delay_s=1.0))
    world.link.send(numbered(3))
    world.other.send(Batch(numbered(4).data, SIZE, world.link.address))
    world.link.receive(0.0)
    world.link.close()
    world.clock.advance(2.0)
    assert (world.link.next_due_s, world.other.receive(0.0)) == (None, [])
    with pytest.raises(OSError, match="closed"):
        world.inner.receive(0.0)


def test_misuse_raises_before_any_fault() -> None:
    world = World(Faults(drop=1.0))
    with pytest.raises(ValueError, match="whole number"):
        world.link.send(Batch(np.zeros(25, np.uint8), 10, PEER))
    assert world.link.sending.counters.entered == 0


def test_a_seed_is_drawn_and_shown_if_none_is_given() -> None:
    link = MemoryNetwork().link()
    one, other = FaultLink(link, Faults(drop=0.5)), FaultLink(link, Faults(drop=0.5))
    assert one.seed != other.seed
    assert f"seed={one.seed}" in repr(one)
    assert FaultLink(link, Faults(drop=0.5), one.seed).sending.seed == one.sending.seed


def test_the_link_below_keeps_the_counters() -> None:
    world = World(Faults(drop=1.0))
    world.link.send(numbered(44))
    assert world.link.counters.datagrams_out == 0
    assert world.link.sending.counters.dropped == 44
    assert world.link.address == world.inner.address
