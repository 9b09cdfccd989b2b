"""Compressed vectors summed through a real switch: what all ranks get, what they contributed, and what it took."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.host.compress.ranks import SEED, Rank, Ranks, gradients, ranks_on
from tests.switch.background import BackgroundServer

from inagg_host.compress import Compressor, Floats, Unbiased, parse
from inagg_host.compress.exchange import Exchange
from inagg_host.compress.feedback import MEMORY
from inagg_switch.service.server import ControlServer
from inagg_switch.software.software_driver import SoftwareDriver

SIZES = (5000, 3, 1500)
WORKERS = 3

SUMMED = [
    ("natural", "nat8"),
    ("natural_dithering:p=inf,s=7,shared=true", "nat4"),
    ("natural_dithering:p=inf,s=7,shared=true", "nat4-nat8"),
    ("dithering:p=inf,s=127,shared=true", "dith8"),
    ("dithering:p=inf,s=127,shared=true", "dith8-exact"),
    ("terngrad", "tern"),
    ("terngrad:scaler=block", "tern"),
    ("randk:k=0.1", "nat8"),
    ("ultrasparse:k=0.5", "fix32"),
    ("blocktopk:k=0.3,block=64", "nat8"),
    ("natural_dithering:p=inf,s=7,shared=true+randk:k=0.1", "nat4"),
    ("natural+blocktopk:k=2,block=128", "nat8"),
    ("natural+qsgd:s=4", "nat8"),
    ("terngrad:clip=0+randk:k=0.2", "tern"),
    ("natural+natural+blocktopk:k=2,block=128", "nat8"),
    ("dithering:p=inf,s=127,shared=true+natural+randk:k=0.1", "dith8"),
]
GATHERED = [
    "topk:k=0.02",
    "qsgd:s=4",
    "natural_dithering",
    "terngrad:scaler=own",
    "natural+topk:k=0.05",
    "qsgd+randk:k=0.1",
    "randk:k=0.2+natural",
    "blocktopk:k=0.5,block=64+natural",
    "terngrad+natural",
    "terngrad+natural+randk:k=0.5",
    "natural+randk:k=0.5+blocktopk:k=0.5,block=64",
]
EXACT = [
    ("terngrad", "tern"),
    ("terngrad:scaler=block", "tern"),
    ("dithering:p=inf,s=127,shared=true", "dith8-exact"),
    ("randk:k=0.1", "fix32"),
    ("ultrasparse:k=0.9", "fix32"),
    ("blocktopk:k=0.3,block=64", "fix32"),
    ("topk:k=0.02", "nat8"),
    ("qsgd:s=4", "nat8"),
]
"""What is summed without another rounding on the way down."""


def reduce_for(compressor: Compressor, steps: int, *sizes: int) -> Callable[[Rank], list[list[Floats]]]:
    """A function of a rank: its sums in each step."""
    return lambda rank: [rank.reduce(compressor, *gradients(rank.rank, step, *sizes)) for step in range(steps)]


def content(vectors: list[list[Floats]]) -> list[bytes]:
    return [vector.tobytes() for step in vectors for vector in step]


@pytest.mark.parametrize(("text", "fmt"), [*SUMMED, *((text, "nat8") for text in GATHERED)])
def test_all_ranks_get_the_same_bits_near_the_sum(switch: str, text: str, fmt: str) -> None:
    compressor = parse(text)
    assert fmt in compressor.formats or not compressor.formats
    with ranks_on(switch, WORKERS, fmt) as ranks:
        results = ranks.run(reduce_for(compressor, 2, *SIZES))
        rounds = ranks[0].exchange.counts
    assert all(content(result) == content(results[0]) for result in results)
    assert (rounds["gathers"] > 0) == (text in GATHERED)
    exact = np.sum([gradients(rank, 0, *SIZES)[0] for rank in range(WORKERS)], axis=0)
    total = results[0][0][0]
    kept = total != 0
    if kept.any():  # what there is points where the sum does
        assert total @ exact > 0
        assert ((total * exact)[kept] > 0).mean() > 0.6


@pytest.mark.parametrize(("text", "fmt"), EXACT)
def test_what_all_ranks_have_contributed_is_what_all_get(switch: str, text: str, fmt: str) -> None:
    """Error feedback's memory is p less what was contributed, so that says what was."""
    compressor = parse(f"ef:damping=1+{text}")
    with ranks_on(switch, WORKERS, fmt) as ranks:
        (totals,) = ranks.run(reduce_for(compressor, 1, *SIZES))[0]
        memories = [[rank.memories[i].state[MEMORY] for i in range(len(SIZES))] for rank in ranks]
    for i, total in enumerate(totals):
        entered = [gradients(rank, 0, *SIZES)[i] for rank in range(WORKERS)]
        # p - m is exact: each value is a multiple of a unit that both are far above
        owns = [x.astype(np.float64) - of_rank[i] for x, of_rank in zip(entered, memories, strict=True)]
        assert np.abs(total - np.sum(owns, axis=0)).max() <= 1e-6 * np.abs(total).max()


def test_terngrads_sums_have_2n_plus_1_levels_of_one_scaler_a_layer(switch: str) -> None:
    with ranks_on(switch, WORKERS, "tern") as ranks:
        (totals,) = ranks.run(reduce_for(parse("terngrad"), 1, *SIZES))[0]
        assert ranks[0].exchange.counts["max-rounds"] == 2
    for i, total in enumerate(totals):
        clipped = [parse("terngrad").scale(gradients(rank, 0, *SIZES)[i]) or 0.0 for rank in range(WORKERS)]
        levels = np.unique(np.abs(total))
        unit = levels[levels > 0][0]
        assert set((levels / unit).tolist()) <= {0.0, 1.0, 2.0, 3.0}
        assert max(clipped) <= unit / round(unit / max(clipped)) <= max(clipped) * (1 + 2**-8), "rounded up to 9 bits"
    assert set((np.unique(totals[0]) / np.abs(totals[0][totals[0] != 0]).min()).tolist()) == {-3, -2, -1, 0, 1, 2, 3}


@pytest.mark.parametrize("text", ["natural+randk:k=0.1", "natural+natural+randk:k=0.1"])
def test_a_sparsifier_keeps_as_many_coordinates_whatever_is_made_of_them(switch: str, text: str) -> None:
    with ranks_on(switch, 2, "nat8") as ranks:
        (total,) = ranks.run(lambda rank: rank.reduce(parse(text), np.ones(1000, np.float32)))[0]
        assert ranks[0].all_reduce.counters.elements == 100
    assert np.count_nonzero(total) == 100


def test_terngrads_scaler_is_that_of_what_another_compressor_makes_for_it(switch: str) -> None:
    """Natural compression makes 1 or 2 of 1.5: a scaler of 1.5 would cut the 2 off."""

    def run(rank: Rank) -> float:
        compressor, x = parse("terngrad:clip=0+natural"), np.full(1000, 1.5, np.float32)
        return float(np.mean([rank.reduce(compressor, x)[0] for _ in range(50)]))

    with ranks_on(switch, 2, "tern") as ranks:
        assert ranks.run(run) == pytest.approx([3.0, 3.0], rel=0.02)  # a standard error is 0.2 %


@pytest.mark.parametrize("text", ["ef+blocktopk:k=1.0", "ef+randk:k=0.5"])
def test_error_feedback_converges_in_every_format_that_it_offers(switch: str, text: str) -> None:
    compressor, steps = parse(text), 100
    centres = [gradients(rank, 0, 4000)[0] for rank in range(2)]
    start = float(np.linalg.norm(centres[0] + centres[1]))

    def distance(rank: Rank) -> float:
        x = np.zeros(4000, np.float32)
        for _ in range(steps):
            x -= np.float32(0.05) * rank.reduce(compressor, x - centres[rank.rank])[0]
        return float(np.linalg.norm(2 * x - centres[0] - centres[1]))

    for fmt in compressor.formats:
        with ranks_on(switch, 2, fmt) as ranks:
            assert ranks.run(distance)[0] < 0.3 * start, fmt


# --- loss ---


LOSSY = [
    ("ef:damping=0.25+terngrad", "tern"),
    ("ef+natural_dithering:p=inf,s=7,shared=true", "nat4"),
    ("ef+randk:k=0.25", "nat8"),
]


@contextmanager
def jobs_on_a_switch_of_their_own(
    ways: list[tuple[str, str]], workers: int, **options: Any
) -> Iterator[tuple[BackgroundServer, list[tuple[Compressor, Ranks]]]]:
    """A job for each compressor and format, at once. The switch's noise depends on the slots that a job gets: on a new
    switch they are always the same."""
    driver = SoftwareDriver()
    server = BackgroundServer(ControlServer(driver, "127.0.0.1:0"))
    server.start()
    try:
        with ExitStack() as stack:
            jobs = [stack.enter_context(ranks_on(server.address, workers, fmt, **options)) for _, fmt in ways]
            yield server, [(parse(text), ranks) for (text, _), ranks in zip(ways, jobs, strict=True)]
    finally:
        server.stop(0.0)
        driver.close()


def train_over(loss: float) -> tuple[list[tuple[list[bytes], list[bytes]]], int]:
    """Sums and memories of each compressor, and how many datagrams were sent again."""
    trained, resent = [], 0
    with jobs_on_a_switch_of_their_own(LOSSY, WORKERS, loss=loss, lanes=64) as (_, jobs):
        for compressor, ranks in jobs:
            results = ranks.run(reduce_for(compressor, 3, *SIZES))
            memories = [memory.state[MEMORY].tobytes() for rank in ranks for memory in rank.memories.values()]
            trained.append(([part for result in results for part in content(result)], memories))
            resent += sum(rank.all_reduce.counters.resent for rank in ranks)
    return trained, resent


def test_losses_change_neither_sums_nor_memories() -> None:
    calm, _ = train_over(0.0)
    stormy, resent = train_over(0.01)
    assert resent > 0
    assert stormy == calm
    assert all(np.frombuffer(memories[0], np.float32).any() for _, memories in calm)


# --- bytes, counted in packets ---

ELEMENTS = 400_000

BYTES_UP = [
    ("natural", "nat8", 1.0),
    ("natural_dithering:p=inf,s=7,shared=true", "nat4", 0.5),
    ("terngrad", "tern", 0.25),
    ("dithering:p=inf,s=127,shared=true", "dith8", 1.0),
    ("dithering:p=inf,s=127,shared=true", "dith8-exact", 1.0),
    ("randk:k=0.1", "nat8", 0.1),
    ("natural_dithering:p=inf,s=7,shared=true+randk:k=0.01", "nat4", 0.005),
    ("randk:k=0.1", "tern", 0.025),
]


@pytest.mark.parametrize(("text", "fmt", "wanted"), BYTES_UP)
def test_bytes_of_an_element_on_the_wire(switch: str, text: str, fmt: str, wanted: float) -> None:
    with ranks_on(switch, 2, fmt) as ranks:
        ranks.run(reduce_for(parse(text), 1, ELEMENTS))
        counters = ranks[0].all_reduce.counters
    sent = counters.bytes_out / counters.datagrams_out * (counters.datagrams_out - counters.resent)
    header = {"tern": 24 / 724, "dith8-exact": 24 / 720}.get(fmt, 24 / 1448)
    scales = 2 * 1472  # the blocks of scales (and their refinement), and that the last block is filled up
    assert wanted * ELEMENTS <= sent <= wanted * ELEMENTS * (1 + header) + 3 * scales


def test_only_blocks_that_some_rank_has_travel(switch: str) -> None:
    """Each rank has 5 blocks of 200 of its own, and one that all have: 16 blocks of 256 elements, and a byte for each
    of the 200."""
    block, count = 256, 200

    def run(rank: Rank) -> Floats:
        x = np.zeros(block * count, np.float32)
        x.reshape(count, block)[[0, *range(10 * (rank.rank + 1), 10 * (rank.rank + 1) + 5)]] = rank.rank + 1
        return rank.reduce(parse("blocktopk:block=256"), x)[0]

    with ranks_on(switch, WORKERS, "fix32", lanes=64) as ranks:
        total = ranks.run(run)[0].reshape(count, block)
        elements, bytes_out = ranks[0].all_reduce.counters.elements, ranks[0].all_reduce.counters.bytes_out
        resent = ranks[0].all_reduce.counters.resent
    assert elements == 16 * block + count
    assert bytes_out < (16 * block * 4 + count) * 1.25 + resent * (24 + 64 * 4)
    assert set(total[0]) == {6.0}
    for rank in range(WORKERS):
        assert set(total[10 * (rank + 1) : 10 * (rank + 1) + 5].ravel()) == {rank + 1.0}
    assert not total[1:10].any()


def test_what_is_gathered_is_counted_and_warned_of_once(switch: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "inagg"), ranks_on(switch, 2, "nat8") as ranks:
        ranks.run(reduce_for(parse("topk:k=10"), 3, ELEMENTS))
        counts, sent = ranks[0].exchange.counts, ranks[0].all_reduce.counters.datagrams_out
    assert counts == {"gathers": 3, "gathered-bytes": 3 * (4 + 10 * 8)}
    assert sent == 0
    said = [record.levelname for record in caplog.records if "gathered by the inner group" in record.message]
    assert said == ["WARNING"], "once, on the first rank"


def test_what_is_for_theory_is_warned_of_once(switch: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "inagg"), ranks_on(switch, 2, "nat8") as ranks:
        ranks.run(reduce_for(parse("randk:k=0.01"), 3, ELEMENTS))
    said = [record.levelname for record in caplog.records if "multiplies what it keeps" in record.message]
    assert said == ["WARNING"], "once, on the first rank"


def test_without_a_group_to_gather_in_it_says_what_cannot_be(switch: str) -> None:
    with ranks_on(switch, 1, "nat8") as ranks:
        exchange = Exchange(ranks[0].all_reduce, 0, 1, SEED)
        with pytest.raises(ValueError, match=r"TopK\(k=1\) cannot be summed in the switch, and there is no group"):
            exchange.reduce(parse("topk:k=1"), {0: np.ones(3, np.float32)}, {})


# --- what is not finite ---


@pytest.mark.parametrize(
    ("text", "fmt"),
    [
        ("ef+natural", "nat8"),
        ("ef:damping=0.5+terngrad", "tern"),
        ("ef+randk:k=0.1", "nat8"),
        ("ef+blocktopk:k=0.5,block=64", "nat8"),
        ("ef+topk:k=0.1", "nat8"),
        ("ef+natural+topk:k=0.1", "nat8"),
    ],
)
def test_a_step_with_nan_on_one_rank_is_nan_on_all_and_not_remembered(switch: str, text: str, fmt: str) -> None:
    compressor = parse(text)

    def run(rank: Rank) -> tuple[bool, bool, bool]:
        rank.reduce(compressor, *gradients(rank.rank, 0, 5000))
        before = rank.memories[0].state[MEMORY].copy()
        bad = gradients(rank.rank, 1, 5000)[0]
        if rank.rank == 1:
            bad[[7, 99]] = np.inf, np.nan
        (spoilt,) = rank.reduce(compressor, bad)
        same = before.tobytes() == rank.memories[0].state[MEMORY].tobytes()
        (good,) = rank.reduce(compressor, *gradients(rank.rank, 2, 5000))
        return bool(np.isnan(spoilt).any()), same, bool(np.isfinite(good).all())

    with ranks_on(switch, 2, fmt) as ranks:
        assert ranks.run(run) == [(True, True, True)] * 2


def test_nan_that_nobody_sees_is_not_remembered(switch: str) -> None:
    """Ultra-sparse: mostly nothing travels at all."""
    compressor = parse("ef+ultrasparse:k=0.001")

    def run(rank: Rank) -> bool:
        (total,) = rank.reduce(compressor, np.full(50, np.nan if rank.rank else 1.0, np.float32))
        return bool(np.isfinite(total).all() and np.isfinite(rank.memories[0].state[MEMORY]).all())

    with ranks_on(switch, 2, "fix32") as ranks:
        assert ranks.run(run) == [True, True]


# --- a switch that goes away ---


def test_what_the_inner_group_sums_for_the_switch_is_remembered_rightly() -> None:
    """It adds the numbers themselves. So from then on what is given, and not yet in the sums, is in the memories."""
    ways = [("ef:damping=0.25+terngrad", "tern"), ("ef+blocktopk:k=4,block=64", "nat8")]
    with jobs_on_a_switch_of_their_own(ways, 2, fallback=True) as (server, jobs):
        before = []
        for compressor, ranks in jobs:
            ranks.run(reduce_for(compressor, 1, *SIZES))
            before.append([rank.memories[0].state[MEMORY].copy() for rank in ranks])
        server.stop(0.0)
        given = np.sum([gradients(rank, 1, *SIZES)[0] for rank in range(2)], axis=0)
        for (compressor, ranks), memories in zip(jobs, before, strict=True):
            results = ranks.run(partial(reduce_second, compressor))
            assert content([results[0]]) == content([results[1]])
            assert ranks[0].all_reduce.counters.inner
            after = [rank.memories[0].state[MEMORY] for rank in ranks]
            expected = given + np.sum(memories, axis=0) - np.sum(after, axis=0)
            np.testing.assert_allclose(results[0][0], expected, atol=1e-5)


def reduce_second(compressor: Compressor, rank: Rank) -> list[Floats]:
    return rank.reduce(compressor, *gradients(rank.rank, 1, *SIZES))


# --- another compressor in mid-run ---


def test_another_compressor_takes_over_the_memory(switch: str) -> None:
    """top-k of one coordinate forgets nothing: with what is left, the sums of all steps are the sums of all values."""

    def run(rank: Rank) -> tuple[Floats, Floats]:
        steps = [parse(text) for text in ("ef+topk:k=1", "ef+randk:k=3", "ef+blocktopk:k=1,block=8", "topk:k=1.0")]
        values = [gradients(rank.rank, step, 64)[0] for step in range(len(steps))]
        totals = [rank.reduce(compressor, x)[0] for compressor, x in zip(steps, values, strict=True)]
        assert rank.memories[0].state == {}
        return np.sum(totals, axis=0), np.sum(values, axis=0)

    with ranks_on(switch, 2, "fix32") as ranks:
        results = ranks.run(run)
    expected = np.sum([values for _, values in results], axis=0)
    for total, _ in results:
        np.testing.assert_allclose(total, expected, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_compressor_that_promises_nothing_is_refused_before_a_rank_waits_for_others(switch: str, rank: int) -> None:
    with ranks_on(switch, 1, "nat8") as ranks:
        exchange = Exchange(ranks[0].all_reduce, rank, 2, SEED, lambda data: pytest.fail("waits"))
        with pytest.raises(ValueError, match="give a damping"):
            exchange.begin(parse("ef+qsgd:s=7+topk:k=0.1"), {0: np.ones(ELEMENTS, np.float32)}, {})


def test_another_tensor_than_before_is_refused_and_nothing_changes(switch: str) -> None:
    with ranks_on(switch, 1, "fix32") as ranks:
        (rank,) = ranks
        rank.reduce(parse("ef+natural"), np.ones(10, np.float32))
        with pytest.raises(ValueError, match="11 elements of float32 where one of 10"):
            rank.reduce(parse("ef+natural"), np.ones(11, np.float32))
        assert rank.memories[0].step == 1


def test_one_that_is_refused_costs_the_others_neither_steps_nor_what_is_remembered(switch: str) -> None:
    with ranks_on(switch, 1, "fix32") as ranks:
        (rank,) = ranks
        rank.reduce(parse("ef+topk:k=1"), *(np.arange(1, 10, dtype=np.float32) for _ in range(2)))
        before = rank.memories[0].state[MEMORY].copy()
        with pytest.raises(ValueError, match="11 elements of float32 where one of 9"):
            rank.reduce(parse("natural"), np.ones(9, np.float32), np.ones(11, np.float32))
        assert rank.memories[0].step == 1
        assert before.any()
        assert (rank.memories[0].state[MEMORY] == before).all()


@pytest.mark.parametrize("vectors", [{}, {0: np.ones(3, np.float32), 1: np.ones(3)}])
def test_vectors_of_several_types_are_refused(switch: str, vectors: dict[int, Floats]) -> None:
    with ranks_on(switch, 1, "fix32") as ranks, pytest.raises(ValueError, match="all of one type"):
        ranks[0].exchange.reduce(parse("natural"), vectors, {})


def test_the_memory_of_a_damped_compressor_adds_up(switch: str) -> None:
    """x~ = x - m: all that was contributed, and what is remembered, is all that was given."""
    compressor = parse("ef+dithering:p=inf,s=127,shared=true")
    assert isinstance(parse("dithering:p=inf,s=1").bound(5000), Unbiased)

    def run(rank: Rank) -> tuple[Floats, Floats]:
        values = [gradients(rank.rank, step, 5000)[0] for step in range(5)]
        totals = [rank.reduce(compressor, x)[0] for x in values]
        left: Floats = np.sum(values, axis=0) - rank.memories[0].state[MEMORY]
        return np.sum(totals, axis=0), left

    with ranks_on(switch, 2, "dith8-exact") as ranks:
        results = ranks.run(run)
    np.testing.assert_allclose(results[0][0], results[0][1] + results[1][1], atol=1e-4)
