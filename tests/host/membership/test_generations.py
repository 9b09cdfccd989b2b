"""A job whose slots have served their last generation goes on in a new epoch, and its users see nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.host.io.rig import Portless

from inagg_host.allreduce import AllReduce
from inagg_host.core import Epoch
from inagg_host.membership.session import Session
from inagg_link.base import Link
from inagg_proto.v1 import control_pb2 as pb
from inagg_testbed.switch_process import SwitchProcess
from inagg_wire.layout import GENERATION_MAX

LANES, WINDOW, SEED = 16, 2, 7
SLOTS = 2 * WINDOW
LAST = SLOTS * GENERATION_MAX
"""The first block that the first round of generations does not have."""


@pytest.mark.parametrize("wrap_link", [None, Portless], ids=["compiled", "python"])
@pytest.mark.parametrize("before", [1, 3, 9])
def test_a_sum_in_which_the_generations_run_out_is_whole(
    monkeypatch: pytest.MonkeyPatch, wrap_link: Callable[[Link], Link] | None, before: int
) -> None:
    join, joined = Session.join, set[Session]()

    def join_late_in_life(session: Session, addresses: Any, resume: pb.Resume | None = None, **rest: Any) -> Epoch:
        """The first time, as a rank that has run for so long that so many blocks are left ``before`` the end."""
        if session not in joined:
            joined.add(session)
            position = pb.Position(slots=SLOTS, next_block=LAST - before)
            resume = pb.Resume(epoch=1, seed=SEED, shards=[position], reason="late in life")
        return join(session, addresses, resume, **rest)

    monkeypatch.setattr(Session, "join", join_late_in_life)
    values = np.ldexp(np.float32(1), np.arange(20 * LANES) % 5).astype(np.float32)

    def rank(number: int) -> tuple[list[Any], int]:
        options: dict[str, Any] = {"lanes": LANES, "window": WINDOW, "seed": SEED, "timeout_s": 30.0}
        with AllReduce(rank=number, workers=2, switch=switch.control, wrap_link=wrap_link, **options) as sums:
            return [sums(values.copy()) for _ in range(3)], sums.counters.epochs

    with SwitchProcess() as switch, ThreadPoolExecutor(2) as pool:
        for results, epochs in pool.map(rank, range(2)):
            for result in results:
                np.testing.assert_array_equal(result, 2 * values)  # powers of two are exact
            assert epochs >= 2  # 3 where one asks for the second before the other has its last result
