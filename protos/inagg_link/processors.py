"""Whether this process may keep a processor that it does not need at once: see `waiting.may_stay_awake`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

LOAD = "/proc/loadavg"
"""Says how many threads of the machine run, or could (proc(5))."""


@cache
def load_descriptor() -> int:
    """A descriptor of `LOAD`, for the life of this process; -1 if there is none."""
    try:
        return os.open(LOAD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def processors() -> int:
    """Number of processors of the machine; 0 if this process may use only some of them, or only a part of their
    time."""
    of_machine = os.cpu_count() or 0
    return of_machine if len(os.sched_getaffinity(0)) == of_machine and not has_quota() else 0


def has_quota(membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether processor time of this process, or of what it belongs to, is limited (cgroups(7)): then whoever uses it
    up is stopped for a while. In a container the groups are at the root of what is ``mounted``."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name, none = mounted, "cpu.max", "max"  # version 2
        elif "cpu" in controllers.split(","):
            top, name, none = mounted / controllers, "cpu.cfs_quota_us", "-1"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == top.parent:
                break
            try:
                limit = (folder / name).read_text()
            except OSError:  # the root has none, nor has a group that cannot be seen from here
                continue
            if limit.split()[0] != none:
                return True
    return False
