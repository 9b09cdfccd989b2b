"""What each compressor promises, against what is measured, over dimensions and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from inagg_host.compress import (
    Bound,
    Composed,
    Contraction,
    ErrorFeedback,
    Floats,
    Key,
    NoBound,
    TopK,
    Unbiased,
    parse,
)
from inagg_host.compress.base import Indices
from inagg_host.compress.sparse import Sparsifier

DRAWS = 120
DIMENSIONS = (3, 64, 2000)

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "gaussian": lambda rng, d: rng.standard_normal(d),
    "heavy-tailed": lambda rng, d: rng.standard_normal(d) / rng.random(d) ** 2,
    "sparse": lambda rng, d: rng.standard_normal(d) * (rng.random(d) < 0.1) + np.eye(1, d)[0],
    "constant": lambda rng, d: np.full(d, 0.7),
    "octaves": lambda rng, d: 2.0 ** rng.uniform(-20, 5, d),
    "spike": lambda rng, d: np.where(np.arange(d) == d // 2, math.sqrt(d), 1.0),
    "four-thirds": lambda rng, d: np.full(d, 4 / 3),
}

EVERY = [
    "natural",
    "natural_dithering:p=1,s=8",
    "natural_dithering:p=2,s=8",
    "natural_dithering:p=2,s=2",
    "natural_dithering:p=inf,s=4",
    "dithering:p=1,s=5",
    "dithering:p=2,s=1",
    "qsgd:s=16",
    "dithering:p=inf,s=3",
    "terngrad:clip=0,scaler=own",
    "topk:k=0.1",
    "topk:k=1",
    "randk:k=0.1",
    "randk:k=2,scaled=false",
    "ultrasparse:k=0.7",
    "blocktopk:k=0.3,block=7",
    "natural+topk:k=0.2",
    "natural+randk:k=0.5",
    "natural+qsgd:s=8",
    "topk:k=0.5+topk:k=0.3",
    "topk:k=0.9+natural",
    "qsgd:s=64+blocktopk:k=0.5,block=7",
    "randk:k=0.3,scaled=false+natural",
    "randk:k=0.3,scaled=false+randk:k=0.6",
    "ultrasparse:k=0.7+natural+topk:k=0.4",
    "natural+qsgd:s=16+randk:k=0.5",
    "terngrad:clip=0+natural",
    "ef+natural",
    "ef+qsgd:s=1",
    "ef+randk:k=0.3",
    "ef+natural+randk:k=0.3",
    "ef+randk:k=0.3+natural",
    "ef+randk:k=0.3+topk:k=0.2",
    "ef:damping=0.5+topk:k=0.2",
]


def errors(text: str, x: Floats) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], float]:
    """|C(x) - x|^2 / |x|^2 in each draw, and |mean of C(x) - x|^2 / |x|^2."""
    compressor, size = parse(text), float(x @ x)
    draws = np.stack([compressor(x, Key(11, 0, step)) for step in range(DRAWS)]) - x
    return np.square(draws).sum(axis=1) / size, float(np.square(draws.mean(axis=0)).sum()) / size


@pytest.mark.parametrize("text", EVERY)
def test_the_error_is_within_the_bound(text: str) -> None:
    for d in DIMENSIONS:
        bound = parse(text).bound(d)
        for name, make in DISTRIBUTIONS.items():
            x = make(np.random.default_rng(d), d)
            each, of_mean = errors(text, x)
            slack = 5 * each.std() / math.sqrt(DRAWS) + 1e-12
            match bound:
                case Unbiased(w):
                    assert each.mean() <= w + slack, (d, name)
                    # the mean of the draws has a DRAWS-th of their variance; of few elements it scatters
                    assert of_mean <= each.mean() / DRAWS * 12 + 1e-6, (d, name)
                case Contraction(kept):
                    assert 0 < kept <= 1
                    # what is seldom kept may not have been in any draw: it has at most this variance
                    slack = max(slack, 5 * math.sqrt(kept * (1 - kept) / DRAWS))
                    assert each.mean() <= 1 - kept + slack, (d, name)
                case NoBound():
                    assert text in ("topk:k=0.9+natural", "ef+randk:k=0.3") or d == 3, bound


# --- and they are not too careful: vectors that reach them ---

WORST: list[tuple[str, int, Callable[[int], Floats], float]] = [
    ("natural", 500, lambda d: np.full(d, 4 / 3), 0.02),
    ("randk:k=0.1", 500, lambda d: np.arange(1.0, d + 1), 0.15),
    ("randk:k=0.1,scaled=false", 500, lambda d: np.arange(1.0, d + 1), 0.02),
    ("topk:k=0.1", 500, np.ones, 1e-12),
    ("blocktopk:k=0.1,block=5", 500, np.ones, 1e-12),
    ("ultrasparse:k=0.9", 4, np.ones, 0.1),
    ("natural+randk:k=0.5,scaled=false", 500, lambda d: np.full(d, 4 / 3), 0.02),
    ("randk:k=0.5,scaled=false+natural", 500, lambda d: np.full(d, 4 / 3), 0.02),
    ("randk:k=0.5,scaled=false+randk:k=0.6", 500, np.ones, 0.02),
    ("randk:k=0.5,scaled=false+natural+topk:k=0.4", 500, lambda d: np.full(d, 4 / 3), 0.02),
    (
        "terngrad:clip=0,scaler=own",
        100,
        lambda d: np.where(np.arange(d) == 0, math.sqrt((1 + d**-0.5) / 2), math.sqrt((1 - d**-0.5) / 2 / (d - 1))),
        0.1,
    ),
]


@pytest.mark.parametrize(("text", "d", "make", "within"), WORST, ids=[text for text, *_ in WORST])
def test_the_bound_is_reached(text: str, d: int, make: Callable[[int], Floats], within: float) -> None:
    bound = parse(text).bound(d)
    limit = bound.w if isinstance(bound, Unbiased) else 1 - bound.kept if isinstance(bound, Contraction) else math.nan
    each, _ = errors(text, make(d))
    assert each.mean() == pytest.approx(limit, rel=within)


# --- the constants themselves ---

STATED: list[tuple[str, int, Bound]] = [
    ("natural", 10, Unbiased(1 / 8)),
    ("natural_dithering:p=2,s=8", 4096, Unbiased(1 / 8 + (64 / 128) ** 2)),
    ("natural_dithering:p=inf,s=8", 65536, Unbiased(1 / 8 + 256 / 128)),
    ("natural_dithering:p=1,s=8", 64, Unbiased(1 / 8 + 0.25)),
    ("qsgd:s=4", 4, Unbiased(0.25)),
    ("qsgd:s=4", 64, Unbiased(2.0)),
    ("dithering:p=1,s=4", 8, Unbiased(2.0)),
    ("terngrad:clip=0", 9, Unbiased(1.0)),
    ("topk:k=3", 10, Contraction(0.3)),
    ("topk:k=30", 10, Contraction(1.0)),
    ("topk:k=0.25", 10, Contraction(0.3)),
    ("randk:k=2", 10, Unbiased(4.0)),
    ("randk:k=2,scaled=false", 10, Contraction(0.2)),
    ("ultrasparse:k=0.5", 10, Contraction(0.05)),
    ("blocktopk:k=1,block=4", 10, Contraction(1 / 3)),
    ("natural+randk:k=5", 10, Unbiased(1 / 8 + 1 + 1 / 8)),
    ("natural+topk:k=5", 10, Contraction(0.5 * 7 / 8)),
    ("topk:k=2+topk:k=5", 10, Contraction(0.2)),
    ("ef+topk:k=3", 10, Contraction(0.3)),
    ("ef+randk:k=2", 10, Contraction(0.2)),
    ("ef+natural", 10, Contraction(7 / 8)),
    ("ef+randk:k=2+natural", 10, Contraction(0.2 * 7 / 8)),
    ("ef+randk:k=2+topk:k=5", 10, Contraction(0.2)),
    ("ef+qsgd:s=4", 64, Contraction(2 / 4 - 3 / 16)),
    ("ef:damping=0.25+qsgd:s=4", 64, Contraction(2 / 4 - 3 / 16)),
]


@pytest.mark.parametrize(("text", "d", "bound"), STATED, ids=[f"{text}-{d}" for text, d, _ in STATED])
def test_stated_constants(text: str, d: int, bound: Bound) -> None:
    got = parse(text).bound(d)
    assert type(got) is type(bound)
    assert str(got) == str(bound) or vars_of(got) == pytest.approx(vars_of(bound))


def vars_of(bound: Bound) -> float:
    return bound.w if isinstance(bound, Unbiased) else bound.kept if isinstance(bound, Contraction) else math.nan


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("terngrad", "clipping moves the mean"),
        ("natural+terngrad", "clipping moves the mean"),
        ("qsgd:s=1+topk:k=0.9", "Dithering(p=2, s=1, shared=False) adds more noise than it keeps"),
        ("ef+randk:k=0.9+qsgd:s=1", "Dithering(p=2, s=1, shared=False) adds more noise than it keeps"),
        ("topk:k=0.1+natural", "the errors of both"),
        ("ef:damping=1+qsgd:s=1", "give at most 0.0613"),
    ],
)
def test_what_is_not_promised_is_said(text: str, why: str) -> None:
    bound = parse(text).bound(1000)
    assert isinstance(bound, NoBound)
    assert why in bound.why


def test_what_adds_as_much_noise_as_there_is_signal_is_damped() -> None:
    """Undamped it would be no contraction, and a memory would grow without end."""
    noisy = parse("ef+dithering:p=2,s=2")
    assert isinstance(noisy, ErrorFeedback)
    assert noisy.inner.bound(4) == Unbiased(1.0)
    assert noisy.factor(4) == 0.5
    assert noisy.bound(4) == Contraction(0.5)


def test_a_memory_needs_a_promise_or_a_damping() -> None:
    with pytest.raises(ValueError, match=r"promises nothing .*clipping.*give a damping"):
        parse("ef+terngrad:scaler=own")(np.ones(5), Key(1))


def test_after_a_sparsifier_the_bound_is_that_of_the_values_it_keeps() -> None:
    inner = TopK(4)
    bound = Composed(parse("qsgd:s=4"), inner).bound(10_000)
    assert bound == Contraction(4 / 10_000 * (1 - 0.25))


def test_after_a_chain_that_ends_with_a_sparsifier_all_others_see_the_values_it_keeps() -> None:
    chain = parse("natural+natural+topk:k=10")
    bound = chain.bound(1000)
    assert isinstance(bound, Contraction)
    assert bound.kept == pytest.approx(10 / 1000 * (1 - (1 / 64 + 1 / 8 + 1 / 8)))
    pair = parse("natural+topk:k=10")
    assert len(chain.compress(np.arange(1.0, 1001.0), Key(1))) == len(pair.compress(np.arange(1.0, 1001.0), Key(1)))


def test_blocks_whose_squares_are_zero_are_not_left_out() -> None:
    x = np.full(300, 1e-200)
    assert (parse("blocktopk:k=1.0")(x, Key(1)) == x).all()


def test_ones_own_sparsifier_may_be_a_dataclass_that_has_no_hash() -> None:
    @dataclass
    class FirstHalf(Sparsifier):
        share: float = 0.5
        name: ClassVar[str] = "firsthalf"

        def bound(self, d: int) -> Bound:
            return Contraction(self.share)

        def select(self, x: Floats, key: Key) -> Indices:
            return np.arange(int(len(x) * self.share))

    composed = Composed(parse("qsgd:s=8"), FirstHalf())
    assert composed.bound(64) == Composed(parse("qsgd:s=8"), TopK(0.5)).bound(64)


def test_two_of_ones_own_sparsifiers_that_look_alike_do_not_share_a_count() -> None:
    """As a class in a notebook that is defined again."""

    def first(count: int) -> Sparsifier:
        @dataclass(frozen=True)
        class First(Sparsifier):
            name: ClassVar[str] = "first"

            def bound(self, d: int) -> Bound:
                return Contraction(count / d)

            def select(self, x: Floats, key: Key) -> Indices:
                return np.arange(count)

        return First()

    for count in (3, 50):
        bound = Composed(parse("qsgd:s=8"), first(count)).bound(64)
        assert bound == Composed(parse("qsgd:s=8"), TopK(count)).bound(64)


@pytest.mark.parametrize("d", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize(
    "text", ["topk:k=1", "topk:k=0.07", "randk:k=0.3", "randk:k=2000", "blocktopk:k=2", "blocktopk:k=0.4,block=3"]
)
def test_the_most_that_a_sparsifier_keeps_is_what_it_keeps_of_ones(text: str, d: int) -> None:
    sparsifier = parse(text)
    assert isinstance(sparsifier, Sparsifier)
    assert sparsifier.most(d) == sparsifier.select(np.ones(d), Key(1)).size


def test_ultrasparse_keeps_one_at_most() -> None:
    ultrasparse = parse("ultrasparse:k=0.5")
    assert isinstance(ultrasparse, Sparsifier)
    assert ultrasparse.most(1000) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("randk:k=0.05", "multiplies what it keeps by 20"),
        ("natural+randk:k=0.01", "multiplies what it keeps by 100"),
        ("randk:k=0.01+natural", "multiplies what it keeps by 100"),
        ("randk:k=50+topk:k=1000", "multiplies what it keeps by 20"),
        ("ef+qsgd:s=1", "is damped to 0.00781"),
        ("randk:k=0.5", None),
        ("ef+randk:k=0.01", None),
        ("ef+randk:k=0.01+natural", None),
        ("ef:damping=0.01+qsgd:s=1", None),
        ("terngrad", None),
        ("natural", None),
    ],
)
def test_what_is_for_theory_says_so(text: str, words: str | None) -> None:
    remark = parse(text).remark(10_000)
    assert remark is None if words is None else words in str(remark)


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("ef+randk:k=0.1", False),
        ("ef+blocktopk", False),
        ("ef:damping=0.1+blocktopk", True),
        ("ef+terngrad:clip=0", True),
        ("ef:damping=0.1+terngrad:clip=0+randk:k=0.1", True),
        ("randk:k=0.1", True),
    ],
)
def test_a_memory_is_not_offered_the_noise_of_tern_that_nobody_has_counted(text: str, offered: bool) -> None:
    """It is more than what is left out: with it a contraction is none."""
    assert ("tern" in parse(text).formats) == offered


def test_natural_is_not_summed_in_formats_of_which_its_promise_does_not_hold() -> None:
    """The lowest level of nat4 is 2^-6 of the largest magnitude: below it a rounding adds more than 1/8."""
    assert parse("natural").formats == ("nat8",)
    assert parse("natural_dithering:p=inf,s=7,shared=true").formats == ("nat4", "nat4-nat8")
