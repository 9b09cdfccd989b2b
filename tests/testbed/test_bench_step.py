"""`inagg bench step`: real processes over a real switch, that measure something; and what is made of measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inagg_testbed.advise.wire import bytes_per_element
from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.step import as_line, limit_of, make_line
from inagg_testbed.bench.step_command import make_table
from inagg_testbed.bench.step_ranks import StepRun, cpu_times, disturbance, family_cpu_s, open_step_ranks
from inagg_testbed.profiles.compute import Compute


def run_of(*seconds: float, busy: float = 0.5) -> StepRun:
    return StepRun(seconds, 1000.0, 0.1, 0.1, busy, 2.0, 1e-3)


COMPUTE = Compute(0.25, 0.5, ((1000, 0.5), (3000, 1.0)), "assumed: 750 ms")


def test_a_line_says_what_computation_does_not_hide_and_how_full_the_link_was() -> None:
    line = make_line("m", "1mbit", 4, "nat8", COMPUTE, run_of(1.0, 0.9, 1.1), run_of(0.2, 0.1, 0.3), 0.0)
    assert line.exposed_s == pytest.approx(0.25)
    assert line.communication_s == 0.2
    assert line.link_share == pytest.approx(4000 * bytes_per_element("nat8", 4) * 8 / 1e6 / 0.2)
    assert (line.elements, line.buckets, line.runs) == (4000, 2, 3)
    assert (line.system, line.format, line.link) == ("inagg", "nat8", "1mbit")


def test_gloo_sums_float32_and_loopback_has_no_rate() -> None:
    line = make_line("m", None, 4, "gloo", COMPUTE, run_of(0.7), run_of(0.2), 0.0)
    assert (line.system, line.format, line.link, line.link_share) == ("gloo", "float32", "loopback", None)
    assert line.exposed_s == 0  # a sleep may end early by a hair, but no communication is negative


@pytest.mark.parametrize(
    ("exposed_s", "link_share", "cpu_busy", "limit"),
    [
        (0.01, 0.99, 0.99, "computation"),
        (0.5, 0.9, 0.99, "link"),
        (0.5, 0.4, 0.99, "CPU"),
        (0.5, None, 0.99, "CPU"),
        (0.5, 0.4, 0.3, "latency"),
    ],
)
def test_the_limit_is_what_was_busy(exposed_s: float, link_share: float | None, cpu_busy: float, limit: str) -> None:
    assert limit_of(1.0, exposed_s, link_share, cpu_busy) == limit


def test_runs_are_put_together() -> None:
    both = StepRun.together([run_of(1.0, busy=0.2), run_of(3.0, busy=0.4)])
    assert both.seconds == (1.0, 3.0)
    assert both.median_s == 2.0
    assert both.cpu_busy == pytest.approx(0.3)


def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = make_line("resnet110", "100mbit", 32, "dith8-exact", COMPUTE, run_of(123.0), run_of(120.0), 0.0)
    make_table(32).print([as_line(line)])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "dith8-exact" in text
    assert "123,000" in text


def test_other_work_on_the_machine_is_told() -> None:
    assert disturbance(0.02) is None
    assert "40%" in (disturbance(0.4) or "")


def test_cpu_time_is_counted_for_the_whole_family() -> None:
    before_s, machine = family_cpu_s(os.getpid()), cpu_times()
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert family_cpu_s(os.getpid()) - before_s >= 0.25  # in ticks of 10 ms, rounded down
        busy, ticks = (after - at for after, at in zip(cpu_times(), machine, strict=True))
        assert 0.2 * os.sysconf("SC_CLK_TCK") <= busy <= ticks
        child.communicate(b"\n")


def test_contradicting_options_are_refused() -> None:
    result = CliRunner().invoke(bench, ["step", "--compute-ms", "1", "--compute-rate", "1"])
    assert result.exit_code == 2
    assert "give one of them" in result.output


@pytest.mark.usefixtures("no_process_is_left")
def test_steps_over_loopback(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install ".[report]"')
    report = tmp_path / "report.html"
    options = [
        "step",
        "--model",
        "resnet110",
        "--workers",
        "2",
        "--runs",
        "2",
        "--compute-ms",
        "20",
        "--against",
        "gloo",
    ]
    result = CliRunner().invoke(bench, [*options, "--report", str(report), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    gloo, ours = map(json.loads, result.stdout.splitlines())
    assert (gloo["system"], ours["system"]) == ("gloo", "inagg")
    for line in (gloo, ours):
        assert line["elements"] == 1_727_962
        assert line["step_s"] >= 0.02
        assert line["exposed_s"] == pytest.approx(line["step_s"] - 0.02, abs=1e-9)
    # float32 to one other rank, and one byte each with headers and scales
    assert gloo["wire_bytes_up"] >= 4 * 1_727_962
    assert 1_727_962 < ours["wire_bytes_up"] < 1.3 * 1_727_962
    assert ours["reduction"] == pytest.approx(1 - ours["step_s"] / gloo["step_s"])
    assert report.read_text().count("data:image/png;base64,") == 1


@pytest.mark.root
@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.slow
def test_steps_over_shaped_links() -> None:
    with open_step_ranks(2, ["gloo", "nat8"], "100mbit") as ranks:
        bare = Compute(0.0, 0.0, ((1 << 20, 0.0),), "")
        for system, least_bytes in (("gloo", 4 << 20), ("nat8", 1 << 20)):
            run = ranks.run(system, bare, 2)
            # a rank can have its sums while the last that it sent still waits in its queue
            assert run.bytes_up >= 0.9 * least_bytes
            # the rate cannot be passed, but for a bucket full at the beginning
            assert run.median_s > 0.8 * (1 << 20) * bytes_per_element(system, 2) * 8 / 1e8
