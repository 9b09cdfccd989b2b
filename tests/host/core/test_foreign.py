"""What comes and is not ours: it changes nothing, and it is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from inagg_host.core import Engine, RanksDisagree, Refused
from inagg_host.core.state import DISAGREES, FOREIGN, FRESH, REFUSED, REPEATED
from inagg_wire import header as wire
from inagg_wire.errors import NOTICED, Reason
from inagg_wire.header import Header
from inagg_wire.layout import GENERATION_MAX, HEADER_BYTES, Encoding, Kind, Op

from .cluster import JOB, TOKEN, Cluster, Datagram, counts, left, shard_of

WINDOW = 8


def awaiting() -> tuple[Cluster, Datagram]:
    """A rank that has sent value blocks and awaits results; the first of these, still under way to it."""
    cluster = Cluster(window=WINDOW, lanes=32, base=4 * WINDOW)
    cluster.submit_all([np.arange(32.0 * 22), np.ones(32 * 22)])
    for _ in range(3):
        cluster.exchange()
    answers = cluster.aggregate([*cluster.send(0), *cluster.send(1)])
    return cluster, next(answer for answer in answers if answer.rank == 0 and answer.header.op is Op.SUM)


def state(engine: Engine) -> tuple[object, ...]:
    """All that a datagram could change, but for the counters."""
    shard, rows = engine.state.shards.copy(), engine.state.rows
    shard["counts"] = 0
    return (
        shard.tobytes(), rows.tobytes(), engine.state.operations.tobytes(), engine.deadline,
        *((o.request.out.tobytes(), o.bytes_of.tobytes(), o.lacking.tobytes()) for o in engine.operations),
    )  # fmt: skip


def assert_ignored(cluster: Cluster, datagram: Datagram, outcome: int) -> None:
    (engine, _), before = cluster.engines, state(cluster.engines[0])
    counted = counts(engine, outcome)
    cluster.take([datagram])
    assert state(engine) == before
    assert counts(engine, outcome) == counted + 1


def test_the_result_that_the_others_are_made_of_is_taken() -> None:
    cluster, result = awaiting()
    fresh, before = counts(cluster.engines[0], FRESH), state(cluster.engines[0])
    cluster.take([result])
    assert counts(cluster.engines[0], FRESH) == fresh + 1
    assert state(cluster.engines[0]) != before


WRONG: dict[str, Callable[[Datagram], Datagram]] = {
    "another magic": lambda d: d.patched(0, 0x4A),
    "another version": lambda d: d.patched(2, 2),
    "a contribution": lambda d: d.but(kind=Kind.CONTRIBUTION),
    "no kind": lambda d: d.patched(3, 9),
    "no op": lambda d: d.patched(4, 3),
    "op 0": lambda d: d.patched(4, 0),
    "another op": lambda d: d.patched(4, int(Op.MAX)),
    "another format": lambda d: d.patched(5, int(Encoding.INT8)),
    "more lanes than payload": lambda d: d.patched(6, 0, 40),
    "another job": lambda d: d.but(job=JOB + 1),
    "another token": lambda d: d.but(token=TOKEN ^ 1),
    "a reason": lambda d: d.patched(10, 0, int(Reason.WRONG_TOKEN)),
    "a slot below the lease": lambda d: d.but(slot=4 * WINDOW - 1),
    "a slot beyond the lease": lambda d: d.but(slot=6 * WINDOW),
    "a slot that is no slot": lambda d: d.patched(16, 0xFF, 0xFF, 0xFF, 0xFF),
    "a payload cut short": lambda d: replace(d, data=d.data[:-1]),
    "a byte too many": lambda d: replace(d, data=d.data + b"\0"),
    "a header alone": lambda d: replace(d, data=d.data[:HEADER_BYTES]),
    "less than a header": lambda d: replace(d, data=d.data[: HEADER_BYTES - 1]),
    "one byte": lambda d: replace(d, data=d.data[:1]),
    "zeros": lambda d: replace(d, data=bytes(len(d.data))),
    "a smaller block": lambda d: replace(
        d, data=wire.Datagram(replace(d.header, lanes=24), d.data[HEADER_BYTES:-8]).pack()
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_is_not_ours_is_foreign(wrong: Callable[[Datagram], Datagram]) -> None:
    cluster, result = awaiting()
    assert_ignored(cluster, wrong(result), FOREIGN)


@pytest.mark.parametrize("bit", range(8 * 16))
def test_any_flipped_bit_before_the_slot_makes_it_foreign(bit: int) -> None:
    """What follows, slot, generation and lanes, is protected by the UDP checksum alone."""
    cluster, result = awaiting()
    assert_ignored(cluster, result.patched(bit // 8, result.data[bit // 8] ^ 0x80 >> bit % 8), FOREIGN)


@pytest.mark.parametrize("generation", [1, 3, 4, 1000, GENERATION_MAX])
def test_another_generation_is_a_repetition(generation: int) -> None:
    cluster, result = awaiting()
    assert result.header.generation == 2
    assert_ignored(cluster, result.but(generation=generation), REPEATED)


def test_a_result_of_a_block_that_is_done_is_not_written_again() -> None:
    cluster, result = awaiting()
    cluster.take([result])
    for operation in cluster.engines[0].operations:
        operation.request.out[:] = 123.0
    assert_ignored(cluster, result, REPEATED)


def test_the_same_result_twice_in_a_batch_is_written_once() -> None:
    cluster, result = awaiting()
    engine = cluster.engines[0]
    before = left(engine)
    data = np.frombuffer(bytearray(result.data * 3), np.uint8)
    engine.on_batch(0, data, len(result.data), cluster.now)
    assert left(engine) == before - 1
    assert counts(engine, REPEATED) == 2


def test_a_result_of_a_block_that_was_not_sent_is_ignored() -> None:
    cluster, result = awaiting()
    ahead = int(shard_of(cluster.engines[0])["snd_nxt"])
    lease = cluster.lease
    assert_ignored(cluster, result.but(slot=lease.slot(ahead), generation=lease.generation(ahead)), REPEATED)


def test_random_bytes_are_foreign() -> None:
    cluster, _ = awaiting()
    rng, engine = np.random.default_rng(0), cluster.engines[0]
    before, foreign = state(engine), counts(engine, FOREIGN)
    for size in range(1, 200):
        engine.on_batch(0, rng.integers(0, 256, 5 * size, np.uint8), size, cluster.now)
    assert state(engine) == before
    assert counts(engine, FOREIGN) == foreign + 5 * 199


def test_what_comes_when_all_is_done_is_ignored() -> None:
    cluster, result = awaiting()
    cluster.run()
    assert_ignored(cluster, result, REPEATED)


# --- notices ---


def notice(contribution: Datagram, reason: Reason) -> Datagram:
    """The switch's answer to a contribution that it refuses."""
    h = contribution.header
    head = Header(Kind.NOTICE, h.op, h.format, 0, h.job, h.token, h.slot, h.generation, reason)
    return replace(contribution, data=head.pack())


def sent() -> tuple[Cluster, Datagram]:
    """A rank that has sent a block of scales, and that block."""
    cluster = Cluster(window=WINDOW)
    cluster.submit_all([np.ones(40)] * 2)
    return cluster, cluster.send(0)[0]


@pytest.mark.parametrize("reason", sorted(NOTICED - {Reason.WRONG_OP}))
def test_a_notice_is_raised_with_its_reason(reason: Reason) -> None:
    cluster, contribution = sent()
    with pytest.raises(Refused, match=f"block 0: {reason.label}") as caught:
        cluster.take([notice(contribution, reason)])
    assert caught.value.reason is reason
    assert counts(cluster.engines[0], REFUSED) == 1


def test_a_notice_names_the_block_in_the_numbering_of_the_job() -> None:
    cluster = Cluster(window=WINDOW, shards=3)
    cluster.submit_all([np.ones(32 * 6)] * 2)
    cluster.exchange()
    third = next(datagram for datagram in cluster.send(0) if datagram.block == 3)
    with pytest.raises(Refused, match="block 3:"):
        cluster.take([notice(third, Reason.WRONG_TOKEN)])


@pytest.mark.parametrize("reason", sorted(set(Reason) - NOTICED))
def test_a_notice_for_a_reason_that_has_none_is_foreign(reason: Reason) -> None:
    cluster, contribution = sent()
    assert_ignored(cluster, notice(contribution, reason), FOREIGN)


@pytest.mark.parametrize("reason", [0, 43, 255, 0xFFFF])
def test_a_notice_with_an_unknown_reason_is_foreign(reason: int) -> None:
    cluster, contribution = sent()
    assert_ignored(cluster, notice(contribution, Reason.WRONG_TOKEN).patched(10, reason >> 8, reason & 255), FOREIGN)


@pytest.mark.parametrize("at", [4, 5])
def test_a_notice_of_what_was_never_sent_is_foreign(at: int) -> None:
    """The contribution was damaged on its way: to send it again is all that is needed."""
    cluster, contribution = sent()
    refused = notice(contribution, Reason.WRONG_FORMAT)
    assert_ignored(cluster, refused.patched(at, refused.data[at] ^ 3), FOREIGN)


def test_a_notice_of_an_older_epoch_is_foreign() -> None:
    cluster, contribution = sent()
    cluster.new_epoch()
    assert_ignored(cluster, notice(contribution, Reason.WRONG_TOKEN), FOREIGN)


def test_a_notice_of_a_block_that_is_done_long_ago_is_ignored() -> None:
    cluster, contribution = sent()
    cluster.run()
    assert_ignored(cluster, notice(contribution, Reason.WRONG_TOKEN), REPEATED)


# --- ranks that disagree ---


def test_scales_here_and_values_there_are_told_apart() -> None:
    """The switch refuses the second by "wrong_op"."""
    cluster = Cluster(window=WINDOW)
    cluster.submit(0, np.ones(32 * 4))
    cluster.submit(1, np.ones(32 * 4))
    cluster.exchange()
    contribution = cluster.send(0)[0]
    with pytest.raises(RanksDisagree, match="same sizes and types in the same order"):
        cluster.take([notice(contribution, Reason.WRONG_OP)])


def test_a_rank_that_goes_on_to_another_tensor_is_told() -> None:
    """Rank 1 has one tensor more between: when rank 0 sends values, it sends scales."""
    cluster = Cluster(window=WINDOW, lanes=8)  # 8 lanes: no room for signatures
    cluster.submit(0, np.ones(8 * 3))
    cluster.submit(1, np.ones(8))
    cluster.submit(1, np.ones(8))
    with pytest.raises(RanksDisagree):
        cluster.run()


@pytest.mark.parametrize("other", [{"elements": 33}, {"divisor": 2}])
def test_another_size_or_divisor_is_told_by_the_signature(other: dict[str, int]) -> None:
    cluster = Cluster(window=WINDOW)
    cluster.submit(0, np.ones(40))
    cluster.submit(1, np.ones(other.get("elements", 40)), divisor=other.get("divisor", 1))
    with pytest.raises(RanksDisagree, match="another rank reduces something else than this one's"):
        cluster.run()


def test_a_result_with_the_other_op_is_told() -> None:
    """No switch that follows the protocol sends one, since its sum has this rank's contribution."""
    cluster, contribution = sent()
    head = replace(
        contribution.header, kind=Kind.RESULT, op=Op.SUM, format=cluster.format.result_encoding(Op.SUM, 2), lanes=32
    )
    with pytest.raises(RanksDisagree):
        cluster.take([replace(contribution, data=wire.Datagram(head, bytes(32)).pack())])
    assert counts(cluster.engines[0], DISAGREES) == 1


def test_a_switch_that_takes_no_maxima_is_told() -> None:
    cluster = Cluster(1, lanes=8)
    cluster.submit(0, np.ones(8))
    (result,) = cluster.aggregate(cluster.send(0))
    with pytest.raises(RuntimeError, match="does not take maxima"):
        cluster.take([result.patched(HEADER_BYTES, 1)])
