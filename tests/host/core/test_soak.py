"""The longer tier of the simulator. `make soak` runs on and on."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.host.sim.soak import SOAK_BLOCKS, soak

SECONDS = float(os.environ.get("INAGG_SOAK_S", "90"))
"""How long: some million events a minute on two cores."""


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 600)  # of more than half an hour also: -o faulthandler_timeout=0
def test_long_runs_are_exact(record_property: Callable[[str, object], None]) -> None:
    first = 2_000_000
    tally = soak(SECONDS, first, SOAK_BLOCKS, os.cpu_count() or 1)
    record_property("figure", f"soak: {tally}")
    assert not tally.failed, "\n".join(f"seed {seed}: {why}" for seed, why in tally.failed)
    assert tally.events > 3_000 * SECONDS
