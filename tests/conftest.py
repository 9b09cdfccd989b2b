"""The test tiers: which of them this machine can run, and a table at the end of each run that says so.

A test marked with a tier that cannot run is skipped with the reason. The table is printed even if nothing was
skipped, so that nobody takes "passed" to mean "tested on a switch".
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest

# An example on a loaded machine can be slow, so no deadline. A failure prints what repeats it.
hypothesis.settings.register_profile("inagg", deadline=None, print_blob=True)
hypothesis.settings.load_profile("inagg")

# A shell starts what it runs in the background with SIGINT ignored, nohup with SIGHUP, and processes hand that on to
# their children. What the tests say of Ctrl-C must not depend on how the tests were started.
if threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

# In processes that are forked gRPC starts its threads again, and in one from here, which had servers and channels, they
# crashed twice (1.85.1). It reads this when it is imported; what the tests start does not have it.
if "GRPC_ENABLE_FORK_SUPPORT" not in os.environ:
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    try:
        import inagg_host.membership  # noqa: F401  # it imports gRPC, so that this does not log on its own
    finally:
        del os.environ["GRPC_ENABLE_FORK_SUPPORT"]

TIER_PROPERTY = "tier"
CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h
CAP_SYS_ADMIN = 21


def effective_capabilities() -> int:
    """The effective capabilities of this process as a bit mask, from /proc (proc(5)); 0 if unknown."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["CapEff"], 16)


def why_not_root() -> str | None:
    # the capabilities and not the user id: root in a container often may not make namespaces
    needed = 1 << CAP_NET_ADMIN | 1 << CAP_SYS_ADMIN
    if effective_capabilities() & needed == needed:
        return None
    return "no CAP_NET_ADMIN and CAP_SYS_ADMIN; run: sudo make test"


def why_not_gpu() -> str | None:
    # importing torch takes seconds: no driver, no import
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):  # Linux, and Windows' subsystem for it
        return "no NVIDIA driver on this machine"
    if importlib.util.find_spec("torch") is None:
        return "no torch; run: pip install '.[torch]'"
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def why_not_p4() -> str | None:
    # no compiler: what it makes is committed
    return "not on PATH: simple_switch_grpc" if shutil.which("simple_switch_grpc") is None else None


def why_not_installed(extra: str, *modules: str) -> Callable[[], str | None]:
    """For what an extra of ours brings."""

    def why_not() -> str | None:
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        return f"no {' and '.join(absent)}; run: pip install '.[{extra}]'" if absent else None

    return why_not


def why_not_browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "no playwright; run: pip install '.[dev]'"
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "no chromium on PATH; run: apt-get install chromium"
    return None


# Tier (a marker in pyproject.toml) -> why it cannot run here, None if it can. `slow` is asked for by option.
TIERS: dict[str, Callable[[], str | None]] = {
    "root": why_not_root,
    "gpu": why_not_gpu,
    "p4": why_not_p4,
    "browser": why_not_browser,
    "lightning": why_not_installed("lightning", "lightning"),
    "accelerate": why_not_installed("accelerate", "accelerate", "transformers"),
    "ray": why_not_installed("ray", "ray"),
    "torchft": why_not_installed("torchft", "torchft"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` is: two more than processors, as tests that wait for a time limit or a process use none."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_configure(config: pytest.Config) -> None:
    """Compile loops and kernels before the workers of pytest-xdist start, which would else compile many of them at the
    same time, each for itself: in a run of all tests, since a part of them needs few."""
    is_worker, parallel = hasattr(config, "workerinput"), getattr(config.option, "numprocesses", None)
    if parallel and not is_worker and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        command = [sys.executable, "-m", "inagg", "warmup"]
        subprocess.run(command, check=False)  # if it fails, tests say why


SLOW_LIMIT_S = 1800.0
"""How long a test of these tiers may take; others have what pyproject.toml says."""
SLOW_TIERS = ("slow", "lightning", "accelerate", "ray", "torchft")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def reason_to_skip(tier: str, config: pytest.Config) -> str | None:
    if tier == "slow":
        return None if config.getoption("--slow") else "not asked for; run: make test-slow"
    return TIERS[tier]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for tier in (*TIERS, "slow"):
        marked = [item for item in items if item.get_closest_marker(tier)]
        reason = reason_to_skip(tier, config) if marked else None
        for item in marked:
            # a property travels in the report, from a worker of pytest-xdist too
            item.user_properties.append((TIER_PROPERTY, tier))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=f"tier {tier}: {reason}"))
            if tier in SLOW_TIERS and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting tests makes many objects and hardly any garbage, and looking for it took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Python looks for garbage through all that lives, and here that is 10,000 tests and a million objects of simulated
    switches: it took a sixth of the time of `tests/p4`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def tier_lines(reports: dict[str, list[pytest.TestReport]], config: pytest.Config) -> list[str]:
    """One line for each tier: how many of its tests ran, how many were skipped, and why.

    `reports` maps an outcome, as pytest's terminal summary names it, to the reports with this outcome.
    """
    lines = []
    for tier in (*TIERS, "slow"):
        count = {
            outcome: sum((TIER_PROPERTY, tier) in map(tuple, report.user_properties) for report in of_outcome)
            for outcome, of_outcome in reports.items()
        }
        skipped = count.pop("skipped", 0)
        ran = sum(count.values())
        if skipped:
            reason = reason_to_skip(tier, config) or "by the tests themselves, see above"
            lines.append(f"{tier:10} SKIPPED {skipped} ({reason})" + (f", ran {ran}" if ran else ""))
        elif ran:
            lines.append(f"{tier:10} ran {ran}")
        else:
            lines.append(f"{tier:10} no test of this tier was selected")
    return lines


FIGURE_PROPERTY, TOTAL_PREFIX = "figure", "total "


def figure_lines(reports: dict[str, list[pytest.TestReport]]) -> list[str]:
    """What tests counted: the lines that they recorded as "figure", and the sums of numbers that they recorded as
    "total X" (with `record_property`)."""
    lines: list[str] = []
    totals: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(reports.values()):
        for name, value in report.user_properties:
            if name == FIGURE_PROPERTY:
                lines.append(str(value))
            elif name.startswith(TOTAL_PREFIX):
                assert isinstance(value, int)
                totals[name.removeprefix(TOTAL_PREFIX)] += value
    return [*(f"{what}: {count:,}" for what, count in totals.items()), *sorted(lines)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    # only outcomes of tests: a report of set-up or tear-down that went well is under ""
    reports = {
        outcome: [report for report in of_outcome if isinstance(report, pytest.TestReport)]
        for outcome, of_outcome in terminalreporter.stats.items()
        if outcome in ("passed", "failed", "skipped", "error", "xfailed", "xpassed")
    }
    if figures := figure_lines(reports):
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)
    terminalreporter.section("tiers")
    for line in tier_lines(reports, config):
        terminalreporter.line(line)
