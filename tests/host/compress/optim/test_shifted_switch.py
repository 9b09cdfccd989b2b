"""DIANA+ through the real switch: what has one matrix is summed there, with a matrix for each worker it is gathered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.host.compress.ranks import Rank, ranks_on

from inagg_host.compress import Dithering, TernGrad
from inagg_host.compress.optim.shifted import Shifted, WhitenedEach
from inagg_host.compress.optim.smoothness import Smoothness

WORKERS, D, ROUNDS = 2, 400, 8
HESSIANS = np.exp(np.random.default_rng(1).uniform(-3, 0, (WORKERS, D)))
CENTRES = np.random.default_rng(2).standard_normal((WORKERS, D))
SHARED = Smoothness.of(HESSIANS.max(axis=0))
OWN = [Smoothness.of(h) for h in HESSIANS]


def minimize(switch: str, fmt: str, compressor: Shifted | None, loss: float = 0.0) -> tuple[list[bytes], int]:
    """Every worker's iterate and state after some rounds, and how many datagrams were sent again. ``compressor``: None
    for a matrix for each worker."""

    def run(rank: Rank) -> bytes:
        mine = compressor or Shifted(WhitenedEach(TernGrad(clip=0, scaler="own"), OWN, rank.rank), 0.2)
        x = np.zeros(D)
        for _ in range(ROUNDS):
            (total,) = rank.reduce(mine, HESSIANS[rank.rank] * (x - CENTRES[rank.rank]))
            x = x - 0.1 * total / WORKERS
        state = rank.memories[0].state
        return b"".join([x.tobytes(), state["shift"].tobytes(), state["shifts"].tobytes()])

    with ranks_on(switch, WORKERS, fmt, loss, lanes=32) as ranks:
        return ranks.run(run), sum(rank.all_reduce.counters.resent for rank in ranks)


@pytest.mark.parametrize(
    ("fmt", "compressor"),
    [
        ("dith8-exact", Shifted(Dithering(math.inf, 127, shared=True), 0.5, SHARED)),
        ("tern", Shifted(TernGrad(clip=0), 0.2, SHARED)),
    ],
    ids=["dith8-exact", "tern"],
)
def test_loss_changes_no_bit_of_the_state(switch: str, fmt: str, compressor: Shifted) -> None:
    without, _ = minimize(switch, fmt, compressor)
    with_loss, resent = minimize(switch, fmt, compressor, loss=0.05)
    assert resent > 0
    assert with_loss == without
    assert any(without[0])


def test_sum_of_shifts_is_that_of_all_workers(switch: str) -> None:
    states, _ = minimize(switch, "dith8-exact", Shifted(Dithering(math.inf, 127, shared=True), 0.5, SHARED))
    arrays = [np.frombuffer(state).reshape(3, D) for state in states]
    x, shifts = arrays[0][0], arrays[0][2]
    assert all((a[0] == x).all() and (a[2] == shifts).all() for a in arrays)
    assert shifts == pytest.approx(sum(a[1] for a in arrays), abs=1e-12)


def test_a_matrix_for_each_worker_goes_through_a_gather_and_all_get_the_same(switch: str) -> None:
    states, _ = minimize(switch, "nat8", None)
    arrays = [np.frombuffer(state).reshape(3, D) for state in states]
    assert (arrays[0][0] == arrays[1][0]).all()
    assert (arrays[0][1] != arrays[1][1]).any()
    minimizer = (HESSIANS * CENTRES).mean(axis=0) / HESSIANS.mean(axis=0)
    distances = [float(((x - minimizer) ** 2).sum()) for x in (np.zeros(D), arrays[0][0])]
    assert distances[1] < distances[0]
