"""Ten thousand random datagrams of several jobs: the P4 program, the model and the fast switch are one."""

from __future__ import annotations

import pytest

from .conftest import MakeRig
from .golden import FLAT_BUILDS
from .traffic import EVERYONE, Traffic, jobs_for

LANES = 32


def counts() -> dict[str, int]:
    """Datagrams for each program of `LANES` lanes, 10,000 together; the default format gets most."""
    names = [name for name, build in FLAT_BUILDS.items() if build.lanes == LANES]
    return {name: 6000 if name.startswith("nat8-") else 4000 // (len(names) - 1) for name in names}


@pytest.mark.parametrize("program", counts())
def test_whatever_comes_all_switches_send_and_count_the_same(make_rig: MakeRig, program: str) -> None:
    rig = make_rig(program, EVERYONE)
    traffic = Traffic(
        rig, jobs_for(list(rig.driver.build.formats), 16 if program.startswith("nat8-") else LANES), seed=20260
    )
    count = counts()[program]
    for _ in range(10):
        traffic.play(count // 10)
        rig.check_counters()
    counters = rig.pair.model.counters
    # the traffic is what it is meant to be
    assert counters.datagrams_in >= count // 10 * 10
    assert sum(job.results for job in counters.jobs.values()) > 0
    assert len(counters.drops) > 10
