"""The protocol, one behaviour a test. Every test runs the reference model and the aggregator side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inagg_switch.aggregation.model import Output
from inagg_wire.errors import Reason
from inagg_wire.formats import FORMATS
from inagg_wire.layout import GENERATION_MAX, Op

from .oracle import result_of
from .pair import Pair
from .world import block_of, make_binding, make_contribution, notice, simple_contribution

TWO = make_binding(1, "nat8", n=2)
THREE = make_binding(1, "dith8-exact", n=3)
FORMAT_NAMES = sorted(FORMATS)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def drops(pair: Pair) -> dict[Reason, int]:
    return pair.aggregator.counters().drops


# --- sums and results -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("op", Op, ids=lambda op: op.name.lower())
def test_the_last_contribution_multicasts_the_exact_result_in_rank_order(pair: Pair, name: str, op: Op) -> None:
    binding = make_binding(1, name, n=5)
    pair.bind(binding)
    contributions = block_of(binding, 3, op)
    assert pair.round(binding, contributions[:4], ranks=[3, 1, 0, 2]) == []
    outputs = pair.receive(contributions[4], binding.children[4])
    assert outputs == [Output(result_of(binding, 3, op), binding.children)]


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_the_order_of_contributions_does_not_matter(name: str) -> None:
    binding, results = make_binding(1, name, n=4), set()
    for ranks in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        pair = Pair()
        pair.bind(binding)
        results |= {output.data for output in pair.round(binding, block_of(binding, 1), ranks)}
    assert results == {result_of(binding, 1)}


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_job_of_one_worker_gets_a_result_for_each_contribution(pair: Pair, name: str) -> None:
    binding = make_binding(1, name, n=1)
    pair.bind(binding)
    for block in range(10):
        assert pair.round(binding, block_of(binding, block)) == [Output(result_of(binding, block), binding.children)]


def test_a_job_of_32_workers_fills_the_whole_bitmap(pair: Pair) -> None:
    binding = make_binding(1, "fix32", n=32)
    pair.bind(binding)
    assert pair.round(binding, block_of(binding, 0)) == [Output(result_of(binding, 0), binding.children)]
    assert pair.receive(block_of(binding, 0)[31], binding.children[31])[0].to == binding.children[31:]
    pair.check()


def test_ranks_follow_the_binding_and_not_the_order_of_addresses(pair: Pair) -> None:
    binding = replace(THREE, children=THREE.children[::-1])
    pair.bind(binding)
    assert pair.round(binding, block_of(binding, 0)) == [Output(result_of(binding, 0), THREE.children[::-1])]
    pair.receive(block_of(binding, 0)[0], binding.children[0])
    assert pair.aggregator.counters().jobs[1].resends == [1, 0, 0]


def test_invalid_codes_count_as_zero_and_are_counted(pair: Pair) -> None:
    binding = make_binding(1, "tern", n=2)
    pair.bind(binding)
    codes = np.full(32, 0b10, np.uint32)  # -2
    codes[0] = 1
    outputs = [out for source in binding.children for out in pair.receive(make_contribution(binding, 0, codes), source)]
    assert outputs[0].data[24:] == bytes([0x20]) + bytes(15)
    assert pair.aggregator.counters().jobs[1].invalid_codes == 62


# --- loss, duplicates, reuse ----------------------------------------------------------------------------


def test_a_duplicate_before_completion_is_dropped_and_not_added(pair: Pair) -> None:
    pair.bind(THREE)
    contributions = block_of(THREE, 0)
    assert pair.round(THREE, contributions, ranks=[0, 0, 1, 0, 1]) == []
    assert drops(pair) == {Reason.DUPLICATE: 3}
    assert pair.receive(contributions[2], THREE.children[2]) == [Output(result_of(THREE, 0), THREE.children)]


def test_a_duplicate_with_other_codes_does_not_replace_the_first(pair: Pair) -> None:
    pair.bind(TWO)
    contributions = block_of(TWO, 0)
    pair.receive(contributions[0], TWO.children[0])
    pair.receive(make_contribution(TWO, 0, np.full(32, 9, np.uint32)), TWO.children[0])
    assert pair.receive(contributions[1], TWO.children[1]) == [Output(result_of(TWO, 0), TWO.children)]


def test_a_duplicate_after_completion_brings_the_same_bytes_to_who_asked_alone(pair: Pair) -> None:
    pair.bind(THREE)
    pair.round(THREE, block_of(THREE, 1))
    (result,) = pair.round(THREE, block_of(THREE, 5))
    for rank in (1, 0, 2, 1):
        again = pair.receive(block_of(THREE, 5)[rank], THREE.children[rank])
        assert again == [Output(result.data, (THREE.children[rank],))]
    assert pair.aggregator.counters().jobs[1].resends == [1, 2, 1]


def test_a_resend_brings_the_sum_even_if_the_duplicate_carries_other_codes(pair: Pair) -> None:
    pair.bind(TWO)
    (result,) = pair.round(TWO, block_of(TWO, 0))
    (again,) = pair.receive(make_contribution(TWO, 0, np.full(32, 9, np.uint32)), TWO.children[1])
    assert again.data == result.data
    pair.check()


@pytest.mark.parametrize("phases", [1, 2, 3, 4, 5, 8, 17, 64])
@pytest.mark.parametrize("others_first", [False, True])
def test_a_duplicate_delayed_by_any_number_of_phases_is_never_added(
    pair: Pair, phases: int, others_first: bool
) -> None:
    """The fault of SwitchML's two-version scheme: a copy delayed by two phases has the version bit of a new packet.

    The copy arrives ``phases`` uses of its slot later, before or after another worker has begun the new use.
    """
    pair.bind(THREE)
    slots = THREE.lease.slots
    late = simple_contribution(THREE, 0, 1)
    for block in range(1, 1 + phases * slots, slots):
        assert pair.round(THREE, block_of(THREE, block)) == [Output(result_of(THREE, block), THREE.children)]
    block = 1 + phases * slots
    new = block_of(THREE, block)
    if others_first:
        pair.receive(new[1], THREE.children[1])
    outputs = pair.receive(late, THREE.children[0])
    if others_first:
        assert outputs == []
        assert drops(pair) == {Reason.STALE: 1}
    elif phases > 1:
        assert outputs == []  # the slot serves a later generation
    else:
        assert outputs == [Output(result_of(THREE, 1), THREE.children[:1])]  # it still serves that one: a resend
    rest = [0, 2] if others_first else [0, 1, 2]
    assert pair.round(THREE, new, rest) == [Output(result_of(THREE, block), THREE.children)]
    assert pair.receive(late, THREE.children[0]) == []
    assert pair.receive(new[2], THREE.children[2]) == [Output(result_of(THREE, block), THREE.children[2:])]
    pair.check()


def test_old_copies_of_every_earlier_block_at_once_change_nothing(pair: Pair) -> None:
    pair.bind(TWO)
    slots = TWO.lease.slots
    history = [block_of(TWO, block) for block in range(10 * slots)]
    for contributions in history:
        pair.round(TWO, contributions)
    new = [block_of(TWO, block) for block in range(10 * slots, 11 * slots)]
    for contributions in new:
        pair.receive(contributions[0], TWO.children[0])
    for rank in range(2):
        assert pair.receive([contributions[rank] for contributions in history], TWO.children[rank]) == []
    assert drops(pair) == {Reason.STALE: 20 * slots}
    for block, contributions in enumerate(new, 10 * slots):
        assert pair.receive(contributions[1], TWO.children[1]) == [Output(result_of(TWO, block), TWO.children)]


def test_generations_of_different_slots_go_on_independently(pair: Pair) -> None:
    pair.bind(TWO)
    slots, ahead = TWO.lease.slots, []
    for block in (0, 1, slots, 2 * slots, slots + 1):  # slot 0 is two generations ahead of slot 1 at times
        ahead += pair.round(TWO, block_of(TWO, block))
    assert [out.data for out in ahead] == [result_of(TWO, block) for block in (0, 1, slots, 2 * slots, slots + 1)]


def test_the_first_contribution_of_a_new_generation_starts_from_zero(pair: Pair) -> None:
    pair.bind(THREE)
    pair.round(THREE, block_of(THREE, 0))
    later = THREE.lease.slots
    assert pair.round(THREE, block_of(THREE, later)) == [Output(result_of(THREE, later), THREE.children)]
    assert pair.receive(block_of(THREE, 0)[2], THREE.children[2]) == []
    assert drops(pair) == {Reason.STALE: 1}


@pytest.mark.parametrize("generation", [2, 3, 4, 1 << 30, GENERATION_MAX])
@pytest.mark.parametrize("op", [Op.SUM, Op.MAX])
def test_a_rank_that_counts_wrong_is_told_so_and_wipes_out_no_sum(pair: Pair, generation: int, op: Op) -> None:
    pair.bind(THREE)
    pair.round(THREE, block_of(THREE, 0)[:2])
    for rank in (1, 2):  # one that the sum has, one that it lacks
        wrong = simple_contribution(THREE, rank, 0, op, generation=generation)
        told = Output(notice(THREE, wrong, Reason.OUTSIDE_WINDOW), THREE.children[rank : rank + 1])
        assert pair.receive(wrong, THREE.children[rank]) == [told]
    assert drops(pair) == {Reason.OUTSIDE_WINDOW: 2}
    pair.check()
    assert pair.receive(block_of(THREE, 0)[2], THREE.children[2]) == [Output(result_of(THREE, 0), THREE.children)]


def test_a_complete_slot_takes_the_next_generation_alone(pair: Pair) -> None:
    pair.bind(TWO)
    pair.round(TWO, block_of(TWO, 0))
    for generation in (3, 4, GENERATION_MAX):
        pair.receive(simple_contribution(TWO, 0, 0, generation=generation), TWO.children[0])
    assert drops(pair) == {Reason.OUTSIDE_WINDOW: 3}
    block = TWO.lease.slots
    assert pair.round(TWO, block_of(TWO, block)) == [Output(result_of(TWO, block), TWO.children)]


@pytest.mark.parametrize("first", [0, 1, 3, 4, 6, 4 * 77 + 2, 4 * (GENERATION_MAX - 1) + 1, 4 * GENERATION_MAX + 2])
def test_an_epoch_takes_its_blocks_from_the_first_one_on_and_none_before(pair: Pair, first: int) -> None:
    binding = replace(TWO, resume_block=first)
    pair.bind(binding)
    slots, last = binding.lease.slots, 4 * (first // 4 // GENERATION_MAX + 1) * GENERATION_MAX  # where they wrap
    for block in range(first, min(first + slots, last)):
        for before in (block - slots, block - 2 * slots):
            if before // slots // GENERATION_MAX == block // slots // GENERATION_MAX and before >= 0:
                assert pair.receive(simple_contribution(binding, 0, before), binding.children[0]) == []
        assert pair.round(binding, block_of(binding, block)) == [Output(result_of(binding, block), binding.children)]
    assert set(drops(pair)) <= {Reason.STALE}


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_all_slots_of_a_lease_may_be_incomplete_at_once_again_and_again(pair: Pair, name: str) -> None:
    """Those of the job next to it keep what they have."""
    binding, other = make_binding(1, name), make_binding(2, name, base=4)
    pair.bind(binding)
    pair.bind(other)
    for block in (0, 2):
        pair.receive(block_of(other, block)[0], other.children[0])
    slots = binding.lease.slots
    for use, op in enumerate((Op.SUM, Op.MAX, Op.SUM)):
        blocks = range(use * slots, (use + 1) * slots)
        begins, ends = use % 2, 1 - use % 2
        assert pair.receive([block_of(binding, b, op)[begins] for b in blocks], binding.children[begins]) == []
        if use < 2:
            results = pair.receive([block_of(binding, b, op)[ends] for b in blocks], binding.children[ends])
            assert len(results) == slots
    blocks = range(2 * slots, 3 * slots)
    for _ in range(2):  # the results, then the same again
        outputs = pair.receive([block_of(binding, block)[1] for block in blocks], binding.children[1])
        assert [out.data for out in outputs] == [result_of(binding, block) for block in blocks]
    for block in (0, 2):
        outputs = pair.receive(block_of(other, block)[1], other.children[1])
        assert [out.data for out in outputs] == [result_of(other, block)]
    pair.check()


def test_a_slot_serves_sum_and_max_in_turn(pair: Pair) -> None:
    binding = make_binding(1, "nat4", n=3, lanes=64)  # its MAX blocks have half as many lanes as its SUM blocks
    pair.bind(binding)
    for use, op in enumerate([Op.SUM, Op.MAX, Op.SUM, Op.MAX, Op.MAX, Op.SUM]):
        block = use * binding.lease.slots
        outputs = pair.round(binding, block_of(binding, block, op))
        assert outputs == [Output(result_of(binding, block, op), binding.children)]
        pair.check()


def test_the_last_generation_is_served_and_makes_all_others_stale(pair: Pair) -> None:
    last = (GENERATION_MAX - 1) * TWO.lease.slots
    binding = replace(TWO, resume_block=last)
    pair.bind(binding)
    assert pair.round(binding, block_of(binding, last)) == [Output(result_of(binding, last), TWO.children)]
    assert pair.round(binding, block_of(binding, 0)) == []
    assert drops(pair) == {Reason.STALE: 2}


def test_ranks_that_disagree_about_the_op_are_told_so(pair: Pair) -> None:
    pair.bind(THREE)
    pair.receive(simple_contribution(THREE, 0, 0), THREE.children[0])
    other = simple_contribution(THREE, 1, 0, Op.MAX)
    assert pair.receive(other, THREE.children[1]) == [
        Output(notice(THREE, other, Reason.WRONG_OP), THREE.children[1:2])
    ]
    assert pair.receive(simple_contribution(THREE, 0, 0, Op.MAX), THREE.children[0])[0].data[10:12] == b"\0\x28"
    assert drops(pair) == {Reason.WRONG_OP: 2}
    # The sum that has begun is unharmed.
    assert pair.round(THREE, block_of(THREE, 0), [1, 2]) == [Output(result_of(THREE, 0), THREE.children)]
    # After completion too, another op is no request for the result.
    assert len(pair.receive(other, THREE.children[1])[0].data) == 24
