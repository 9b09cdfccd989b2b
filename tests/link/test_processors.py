"""Whether processors are this process's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inagg_link import processors


def write(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """Files of control groups under ``root``: what a process belongs to, and where groups are mounted."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "cgroup", root / "mounted"


@pytest.mark.parametrize(
    ("limited", "files"),
    [
        (False, {"cgroup": "0::/user.slice/a.scope\n", "mounted/user.slice/a.scope/cpu.max": "max 100000\n"}),
        (True, {"cgroup": "0::/user.slice/a.scope\n", "mounted/user.slice/a.scope/cpu.max": "200000 100000\n"}),
        (True, {"cgroup": "0::/a/b\n", "mounted/a/b/cpu.max": "max 100000\n", "mounted/a/cpu.max": "1000 100000\n"}),
        (True, {"cgroup": "0::/of/the/host\n", "mounted/cpu.max": "400000 100000\n"}),
        (False, {"cgroup": "0::/\n"}),
        (True, {"cgroup": "4:cpu,cpuacct:/a\n0::/\n", "mounted/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n"}),
        (False, {"cgroup": "4:cpu,cpuacct:/a\n0::/\n", "mounted/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n"}),
        (True, {"cgroup": "4:cpu:/of/the/host\n", "mounted/cpu/cpu.cfs_quota_us": "50000\n"}),
        (False, {"cgroup": "4:cpuset:/a\n", "mounted/cpuset/a/cpu.cfs_quota_us": "50000\n"}),
        (False, {}),
    ],
    ids=[
        "no limit", "a limit", "a limit of what it is in", "a limit of a container", "the root", "version 1",
        "version 1, no limit", "version 1, a container", "another controller", "no groups",
    ],
)  # fmt: skip
def test_a_quota_is_that_of_any_group_that_a_process_is_in(
    tmp_path: Path, limited: bool, files: dict[str, str]
) -> None:
    assert processors.has_quota(*write(tmp_path, files)) == limited


def test_processors_of_which_some_are_others_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "has_quota", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert processors.processors() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert processors.processors() == 0


def test_a_process_that_has_a_quota_has_no_processors_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "has_quota", lambda: True)
    assert processors.processors() == 0
