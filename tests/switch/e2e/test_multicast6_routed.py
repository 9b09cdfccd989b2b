"""Groups of IPv6 where the loopback has a route for them: the tests marked `needs_groups6`, in a network namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inagg_switch.multicast_groups import LOCAL

ROUTED = f'ip link set lo up && ip -6 route add local {LOCAL[6]} dev lo && exec "$@"'
TESTS = Path(__file__).parents[2]
FILES = (TESTS / "link/test_group6.py", TESTS / "switch/e2e/test_multicast6.py")


def test_groups_of_ipv6_carry_results_where_the_loopback_has_a_route() -> None:
    if not (unshare := shutil.which("unshare")) or not shutil.which("ip"):
        pytest.skip("no unshare(1) or ip(8) on PATH")
    if subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no permission to make a network namespace")
    pytest_ = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *map(str, FILES))
    command = [unshare, "-rn", "sh", "-ec", ROUTED, "sh", *pytest_]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SKIPPED" not in done.stdout
