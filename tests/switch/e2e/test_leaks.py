"""Job after job on one switch: nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.switch.e2e.running import Run, Switch, slots_leased, wait_for_slots

from inagg_switch.service.control_client import ControlClient

JOBS = 100
RESIDENT_GROWTH_MAX_BYTES = 8 << 20
"""What 100 jobs may add to a process. The slots of one job that stayed in use would be 6 MB (1024
of 1448 lanes of 4 bytes), and so would 100 jobs that left 60 KB each."""


def resident_bytes(pid: int) -> int:
    """Memory that a process has."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def descriptors(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def run_jobs(switch: Switch, client: ControlClient, count: int) -> None:
    """Jobs one after the other, with formats and names that alternate."""
    values = [[np.full(3000, 1.0, np.float32)], [np.full(3000, 2.0, np.float32)]]
    for number in range(count):
        name, format_name = f"job-{number % 7}", ("fix32", "nat8", "tern")[number % 3]
        sums = Run(switch.address, values, job=name, format=format_name, seed=number).results()
        if format_name == "fix32":
            np.testing.assert_array_equal(sums[0][0], 3.0)
        wait_for_slots(client, 0)


def test_a_hundred_jobs_leave_no_slots_memory_or_descriptors(start: Callable[..., Switch]) -> None:
    switch = start()
    pids = [switch.process.pid, *switch.shard_pids]
    with switch.client() as client:
        run_jobs(switch, client, 20)  # caches and pools fill, connections open
        before = [(resident_bytes(pid), descriptors(pid)) for pid in pids]
        run_jobs(switch, client, JOBS)
        after = [(resident_bytes(pid), descriptors(pid)) for pid in pids]
        assert slots_leased(client) == 0
        assert not client.stats().jobs
    grown = [a[0] - b[0] for a, b in zip(after, before, strict=True)]
    print("resident bytes grown (control, shard):", grown, "descriptors:", [d for _, d in after])
    assert max(grown) < RESIDENT_GROWTH_MAX_BYTES
    # A connection of a worker that has just left may take a moment to go, or be one more than before.
    assert all(a[1] <= b[1] + 2 for a, b in zip(after, before, strict=True))
