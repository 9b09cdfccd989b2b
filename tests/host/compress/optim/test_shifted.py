"""DIANA and DIANA+ as compressors, between workers that each keep a state."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from inagg_host.compress import Aggregation, Compressor, Dithering, Key, RandK, State, TernGrad, TopK, parse
from inagg_host.compress.optim.shifted import Shifted, WhitenedEach
from inagg_host.compress.optim.smoothness import Smoothness, shared_smoothness, stacked

N, D = 3, 8
RNG = np.random.default_rng(2)
HESSIANS = np.exp(RNG.uniform(-3, 0, (N, D)))
CENTRES = RNG.standard_normal((N, D))
MINIMIZER = (HESSIANS * CENTRES).mean(axis=0) / HESSIANS.mean(axis=0)
OWN = [Smoothness.of(h) for h in HESSIANS]
FULL = [Smoothness.of(np.diag(h)) for h in HESSIANS]


def round_trip(
    compressors: Sequence[Compressor], vectors: np.ndarray, states: Sequence[State], step: int
) -> list[np.ndarray]:
    """What each worker's optimizer sees, with an exact sum."""
    entered = [c.enter(v, s) for c, v, s in zip(compressors, vectors, states, strict=True)]
    own = [c(e, Key(1, rank, step)) for rank, (c, e) in enumerate(zip(compressors, entered, strict=True))]
    total = np.sum(own, axis=0)
    seen = zip(compressors, entered, own, states, strict=True)
    return [c.leave(e, o, total, s) for c, e, o, s in seen]


def minimize(compressors: Sequence[Compressor], step: float, rounds: int) -> tuple[np.ndarray, list[State]]:
    states = [c.new_state(D, np.float64) for c in compressors]
    x = np.zeros(D)
    for t in range(rounds):
        estimates = round_trip(compressors, HESSIANS * (x - CENTRES), states, t)
        assert len({e.tobytes() for e in estimates}) == 1
        x = x - step * estimates[0] / N
    return x, states


@pytest.mark.parametrize("kind", ["plain", "shared", "shared full", "own"])
def test_gradient_descent_converges_to_the_minimum_although_its_gradients_are_compressed(kind: str) -> None:
    inner = Dithering(2, 2)
    shared = shared_smoothness(FULL if "full" in kind else OWN)
    if kind == "own":
        compressors = [Shifted(WhitenedEach(inner, OWN, rank), 0.25) for rank in range(N)]
    else:
        compressors = [Shifted(inner, 0.25, None if kind == "plain" else shared)] * N
    x, _ = minimize(compressors, 0.3, 2500)
    assert np.linalg.norm(x - MINIMIZER) < 1e-6


def test_sum_of_shifts_is_the_sum_of_the_workers_shifts() -> None:
    _, states = minimize([Shifted(Dithering(2, 2), 0.25, shared_smoothness(OWN))] * N, 0.3, 50)
    total = np.sum([s["shift"] for s in states], axis=0)
    for state in states:
        assert state["shifts"] == pytest.approx(total, rel=1e-12)


def test_shift_takes_alpha_of_what_was_contributed() -> None:
    compressor = Shifted(TopK(1), 0.5)
    state = compressor.new_state(3, np.float32)
    x = np.array([1, -8, 2], np.float32)
    (estimate,) = round_trip([compressor], x[None], [state], 0)
    assert estimate.tolist() == [0, -8, 0]
    assert state["shift"].tolist() == state["shifts"].tolist() == [0, -4, 0]
    (estimate,) = round_trip([compressor], x[None], [state], 1)  # of 1, -4, 2
    assert estimate.tolist() == [0, -8, 0]


def test_a_step_with_nan_is_skipped() -> None:
    compressor = Shifted(TopK(1), 0.5)
    state = {"shift": np.ones(2), "shifts": np.ones(2)}
    compressor.leave(np.ones(2), np.ones(2), np.array([np.nan, 1.0]), state)
    assert state["shift"].tolist() == state["shifts"].tolist() == [1.0, 1.0]


def test_only_formats_with_exact_sums_are_offered() -> None:
    assert Shifted(Dithering(math.inf, 127, shared=True), 0.1).formats == ("dith8-exact",)
    assert Shifted(TernGrad(), 0.1).formats == ("tern",)
    assert set(Shifted(RandK(2), 0.1).formats) == {"dith8-exact", "fix32"}, "alpha does not count the noise of tern"


@pytest.mark.parametrize("inner", ["ef+topk:k=1", Shifted(TopK(1), 0.5)], ids=str)
def test_a_compressor_with_a_memory_is_refused_as_nobody_would_ask_it(inner: str | Compressor) -> None:
    with pytest.raises(ValueError, match="has a memory of its own"):
        Shifted(parse(inner) if isinstance(inner, str) else inner, 0.5)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="give a share"):
        Shifted(TernGrad(), alpha)


def test_a_matrix_for_each_worker_needs_a_gather() -> None:
    with pytest.raises(ValueError, match="for one each take WhitenedEach"):
        Shifted(TernGrad(), 0.5, stacked(OWN))
    assert WhitenedEach(TernGrad(), OWN, 0).aggregation is Aggregation.GATHER
    assert WhitenedEach(TernGrad(), OWN, 0).formats == ()


@pytest.mark.parametrize("data", [b"", b"\x03\x00", b"\xff\xff1234"])
def test_bytes_that_name_no_sender_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no sender"):
        WhitenedEach(TopK(1), OWN, 0).decompress(data, D, np.float32)
