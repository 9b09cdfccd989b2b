"""What all benchmarks have in common: names of options, where results go, and how far they are."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inagg_testbed.bench.cli import COMMANDS, bench
from inagg_testbed.bench.overlap import Overlap
from inagg_testbed.bench.step import StepLine
from inagg_testbed.bench.step_ranks import StepRun
from inagg_testbed.bench.training import Found
from inagg_testbed.bench.training_ranks import Phase

SUM = {"format": "nat8", "elements": 1 << 10, "median_s": 0.5, "elements_per_s": 2048.0}
HOST = {"host_bytes_up": 10, "host_bytes_down": 10, "error": 1e-3, "ratio_to_gloo": 2.0}
STAGE = {
    "format": "nat8", "stage": "add", "us_per_batch": 2.5, "batches_per_round": 4, "share_of_round": 0.5,
    "elements_per_s": 1e6,
}  # fmt: skip
SWITCH = {
    "workers": 4, "format": "nat8", "shards": 1, "elements_per_s": 1e6, "packets_per_s": 1e3, "cpu_s_per_gelement": 1.0,
    "echo_elements_per_s": 1e6, "ratio_to_echo": 1.0, "window": 8,
}  # fmt: skip
STEP = StepLine(
    "resnet50", "loopback", 8, "inagg", "nat8", 1000, 2, 0.5, 0.1, 0.2, 0.2, 0.3, None, 0.5, "CPU", 1e6, 0.0, 0.01,
    "assumed", 5, 0.0,
)  # fmt: skip
CURVE = [(10, 0.5, 0.5), (20, 0.4, 0.6)]
TRAINED = Found("text", "inagg nat8", CURVE, [0.4], [0.6], {"1gbit": (Phase(1.0, 9, 9), Phase(1.0, 9, 9))})
OVERLAP = Overlap(0, "inagg", 0.012, 0.009, 8, 7, 5, 0.006, 0.004, 0.003, "")
RANKS = SimpleNamespace(datagrams=lambda: (1, 1), run=lambda *_: ([0.5], {"bytes_out": 1.0, "bytes_in": 1.0}))


def gives(*lines: object) -> Any:
    """A benchmark that has measured these."""
    return lambda *_, **__: iter(lines)


FAKES: dict[str, dict[str, Any]] = {
    "allreduce": {"allreduce.bench_allreduce": gives({"bench": "allreduce", "system": "inagg", "workers": 4, **SUM})},
    "bmv2": {
        "bmv2.open_ranks": lambda *_, **__: nullcontext(RANKS),
        "bmv2.namespaces": SimpleNamespace(require_root=lambda _: None),
    },
    "hosts": {"hosts.bench_hosts": gives({"bench": "hosts", "system": "gloo", **HOST, **SUM})},
    "kernels": {},
    "overlap": {
        "overlap.SwitchProcess": lambda: nullcontext(SimpleNamespace(control="")),
        "overlap.Child": lambda *_: SimpleNamespace(close=lambda: None, kill=lambda: None),
        "overlap.receive_all": lambda *_: [OVERLAP],
    },
    "recovery": {
        "recovery.bench_recovery": gives({"bench": "recovery", "case": "late", "system": "inagg", "recovery_s": 1.5}),
    },
    "sharing": {
        "sharing.bench_sharing": gives({"bench": "sharing", "case": "one job", "resent": 0, "timeouts": 0, **SUM}),
    },
    "stages": {"stages.bench_stages": gives({"bench": "stages", **STAGE})},
    "step": {"step.bench_step": gives(STEP)},
    "switch": {"switch.bench_switch": lambda *_, **__: {"bench": "switch", **SWITCH}},
    "training": {"training.bench_training": lambda found, *_: found.append(TRAINED)},
}  # fmt: skip
"""What does the measuring, and what it then has measured."""
NO_TIME: dict[str, dict[str, Any]] = {
    "step": {
        "step.open_step_ranks": lambda *_: nullcontext(
            SimpleNamespace(run=lambda *_: StepRun((0.1,), 1e3, 0.1, 0.1, 0.5, 0.0, 1e-3), foreign_load=0.0)
        ),
    },
    "switch": {
        "switch.measure": lambda *_, **__: SimpleNamespace(
            elements_per_s=1e6, packets_per_s=1e3, cpu_s_per_gelement=1.0, retries=0
        ),
        "switch.measure_echo": lambda _, load, *__, **___: SimpleNamespace(load=load, elements_per_s=lambda lanes: 1e6),
    },
}
"""What takes the time of a single measurement, in benchmarks that have tests of their own for that."""
OPTIONS = {
    "kernels": ["--elements", "1000", "--format", "nat8", "--float-type", "float32", "--device", "cpu"],
    "step": ["--compute-ms", "1"],
    "training": ["--link", "1gbit"],
}


def command_of(name: str) -> click.Command:
    found = bench.get_command(click.Context(bench), name)
    assert found is not None
    return found


@pytest.fixture
def measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of this benchmark's name: nothing is measured, or little."""
    name: str = request.param
    command_of(name)  # its module is there
    for target, value in FAKES[name].items():
        monkeypatch.setattr(f"inagg_testbed.bench.{target}", value)
    return name


every_bench = pytest.mark.parametrize("measured", COMMANDS, indirect=True)


@every_bench
def test_results_are_a_table_for_people(measured: str) -> None:
    done = CliRunner().invoke(bench, [measured, *OPTIONS.get(measured, [])], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "─" in done.stdout


@every_bench
def test_results_are_lines_of_json_for_programs_and_a_page_with_a_picture(measured: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='a report needs matplotlib: pip install ".[report]"')
    report = tmp_path / "page.html"
    arguments = [measured, *OPTIONS.get(measured, []), "--json", "--report", str(report)]
    done = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines
    assert {line["bench"] for line in lines} == {measured}
    assert all(line["setup"]["time_s"] > 1.7e9 for line in lines)
    assert f"report: {report}" in done.stderr
    page = report.read_text()
    assert page.count("data:image/png;base64,") == 1
    kept = re.search('<script id="data" type="application/json">(.*)</script>', page)
    assert kept is not None
    assert len(json.loads(kept[1])["lines"]) == len(lines)


@pytest.mark.parametrize("name", ["seconds", "runs", "seeds", "report", "as_json"])
def test_what_is_called_the_same_is_the_same(name: str) -> None:
    options = [option for each in COMMANDS for option in command_of(each).params if option.name == name]
    texts = {str(option.help).partition("  [default")[0] for option in options if isinstance(option, click.Option)}
    assert len(texts) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_how_long_it_measures_has_one_of_three_names(name: str) -> None:
    names = {option.name for option in command_of(name).params}
    assert names & {"seconds", "runs", "seeds"}
    assert {"report", "as_json"} <= names


@pytest.mark.parametrize(
    "arguments",
    [
        ["kernels", "--elements", "1000", "--runs", "1", "--format", "nat8", "--format", "tern", "--device", "cpu"],
        ["stages", "--runs", "2", "--format", "nat8", "--format", "tern"],
        ["switch", "--workers", "1", "--seconds", "2", "--runs", "2"],
        ["step", "--model", "resnet110", "--workers", "2", "--compute-ms", "1", "--runs", "1", "--against", "gloo"],
        pytest.param(["overlap", "--runs", "1", "--alone", "--against", "gloo"], marks=pytest.mark.slow),
        pytest.param(["recovery", "--runs", "1", "--against", "gloo", "--case", "switch-restart"],
                     marks=pytest.mark.slow),
        pytest.param(["hosts", "--hosts", "2", "--local-size", "2", "--size", "4K,8K", "--seconds", "1"],
                     marks=[pytest.mark.root, pytest.mark.slow]),
        pytest.param(["sharing", "--size", "64K", "--seconds", "2"], marks=[pytest.mark.root, pytest.mark.slow]),
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_progress_has_as_many_steps_as_there_are_measurements(
    arguments: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for target, value in NO_TIME.get(arguments[0], {}).items():
        monkeypatch.setattr(f"inagg_testbed.bench.{target}", value)
    done = CliRunner().invoke(bench, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    total = re.search(r"measuring: (\d+) step", done.stderr)
    assert total is not None
    assert len(told) == int(total[1])
