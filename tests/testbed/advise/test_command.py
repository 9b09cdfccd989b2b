"""`inagg advise` on a machine whose constants are known: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inagg_testbed import cache
from inagg_testbed.advise import calibrate
from inagg_testbed.advise.calibrate import SYSTEMS, Calibration, Plan, calibration, from_kept
from inagg_testbed.advise.check import LINK_CASES, LOOPBACK_CASES, Checked
from inagg_testbed.advise.command import advise, percent, print_check, verdict
from inagg_testbed.advise.model import Costs, Curve, Sample
from inagg_testbed.advise.predict import advice, predict
from inagg_testbed.advise.racks import Racks
from inagg_testbed.advise.wire import bytes_per_element
from inagg_testbed.advise.without import bounds, powersgd_elements
from inagg_testbed.bench.step_ranks import StepRun
from inagg_testbed.profiles import profile
from inagg_testbed.profiles.compute import Compute
from inagg_testbed.progress import said
from inagg_testbed.topology import TopologyError, namespaces

ALPHA, BETA = 1e-3, 2e-9
SAMPLES = tuple(
    Sample(system, n, e, ALPHA + BETA * e, 0.5e-9 * e, 0.25e-9 * n * e)
    for system in SYSTEMS
    for n in (2, 8)
    for e in (1 << 14, 1 << 23)
)
KNOWN = Calibration("2026-01-01 12:00", "loopback", SAMPLES, {}, 0.0)


@pytest.fixture(autouse=True)
def _calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for network in ("loopback", "veth"):  # whoever runs the test
        content: dict[str, Any] = {
            "network": network,
            "samples": list(map(asdict, SAMPLES)),
            "kernels": {},
            "foreign_load": 0.0,
        }
        cache.keep(f"calibration-{network}", content)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(advise, arguments, catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_prediction_is_what_the_model_says() -> None:
    options = "--model", "resnet110", "--link", "100mbit", "--workers", "4", "--compute-ms", "30", "--json"
    *lines, last = map(json.loads, run(*options).splitlines())
    lines = [line for line in lines if "bound" not in line]
    assert [line["system"] for line in lines] == list(SYSTEMS)
    assert {line["compute"] for line in lines} == {"assumed: 30 ms"}
    first, second = (bucket.elements for bucket in profile("resnet110").buckets())
    gloo = lines[0]
    element_s = bytes_per_element("gloo", 4) * 8 / 1e8
    # ring steps one after another: the latency of two workers three times
    assert gloo["communication_s"] == pytest.approx(2 * 3 * ALPHA + (first + second) * element_s)
    assert gloo["limit"] == "link"
    nat8 = lines[1]
    assert nat8["reduction"] == pytest.approx(1 - nat8["step_s"] / gloo["step_s"])
    assert last["advice"][0].startswith("It will help: ")


def test_the_table_fits_a_terminal_and_says_what_it_rests_on() -> None:
    text = run("--compute-ms", "100")
    assert max(map(len, text.splitlines())) <= 80
    for part in ("Gloo, float32", "nat8", "fix32", "assumed: 100 ms", "own machines", "It will help"):
        assert part in text


def test_only_the_formats_that_are_asked_for() -> None:
    lines = run("--compute-ms", "1", "--format", "tern", "--json").splitlines()
    systems = [json.loads(line)["system"] for line in lines[:-1]]
    assert systems == ["gloo", "tern", "nccl", "nccl-fp16", "nccl-powersgd"]


def test_racks_have_lines_for_one_switch_and_for_a_tree() -> None:
    place = "--workers", "16", "--racks", "2", "--trunk", "200mbit", "--format", "nat8", "--compute-ms", "1"
    *lines, last = map(json.loads, run(*place, "--json").splitlines())
    lines = [line for line in lines if "bound" not in line]
    assert [(line["system"], line["tree"]) for line in lines] == [("gloo", False), ("nat8", False), ("nat8", True)]
    assert {(line["racks"], line["trunk"]) for line in lines} == {(2, "200mbit")}
    assert lines[2]["limit"] == "trunk"
    assert any(sentence.startswith("A tree helps: ") for sentence in last["advice"])
    text = run(*place)
    assert "16 workers in 2 racks, 1gbit, trunks 200mbit" in text
    assert max(map(len, text.splitlines())) <= 80


# --- what there is without a switch ---


def test_bounds_are_those_of_a_ring_over_the_link_alone() -> None:
    work = compute(0.0, 1 << 20)
    full, half, low_rank = bounds(work, [1 << 20], 4, 1e9)
    assert full.time.step_s == pytest.approx((1 << 20) * 8 * bytes_per_element("gloo", 4) / 1e9)
    assert half.time.step_s == pytest.approx(full.time.step_s / 2)
    assert low_rank.time.step_s == pytest.approx(full.time.step_s * 2 * 1024 / (1 << 20))
    assert bounds(work, [1 << 20], 4, 0) == []  # a link without a rate bounds nothing


def test_a_trunk_bounds_a_ring_as_well() -> None:
    work = compute(0.0, 1 << 20)
    assert bounds(work, [1], 8, 1e9, Racks(2, 1e8)) == bounds(work, [1], 8, 1e8)


@pytest.mark.parametrize(("elements", "sent"), [(1, 1), (3, 3), (1 << 20, 2048)])
def test_powersgd_sends_the_factors_of_a_square_matrix_at_least(elements: int, sent: float) -> None:
    assert powersgd_elements(elements) == sent


def test_advice_says_what_to_try_before_a_switch() -> None:
    text = " ".join(run("--compute-ms", "1", "--link", "1gbit", "--workers", "4", "--model", "resnet110").split())
    assert "without a switch, at best" in text
    assert "NCCL, PowerSGD hook, rank 1 may take up to" in text
    assert "less time for a step than NCCL." in text


def test_where_nothing_can_be_kept_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After minutes of measuring a traceback would be the last thing that a user wants."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    @click.command()
    def measure() -> None:
        click.echo(cache.keep("thing", {"value": 7})["value"])

    result = CliRunner().invoke(measure)
    assert result.stdout == "7\n"
    assert "set XDG_CACHE_HOME" in result.stderr


def test_progress_is_said_in_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("inagg_testbed.progress.time.monotonic", lambda: now_s[0])
    with said() as progress:
        for second in range(12):
            now_s[0] = 100.0 + second
            progress(f"calibrating: {second}")
    assert capsys.readouterr().err.splitlines() == ["calibrating: 0", "calibrating: 5", "calibrating: 10"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compute-ms", "1", "--compute-rate", "1"], "give one of them"),
        (["--compute-rate", "0"], "0.0 is not in the range x>0.0"),
        (["--link", "fast"], "100mbit"),
        (["--report", "x.html", "--compute-ms", "1"], "--report goes with --check"),
        (["--racks", "2", "--check"], "--racks is for predictions, not for --check"),
        (["--trunk", "1gbit"], "give --racks too"),
        (["--workers", "33"], "33 workers: one switch serves 1 to 32; put them into --racks"),
        (["--racks", "9", "--workers", "8"], "9 racks for 8 workers"),
    ],
)
def test_wrong_options_are_refused_with_what_to_do_before_anything_is_measured(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "calibration", lambda *_: pytest.fail("calibrates"))
    result = CliRunner().invoke(advise, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_help_and_progress_agree_on_how_long_calibration_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(run("--help").split())
    assert "in two or three minutes" in text
    heard: list[str] = []

    def kernels(progress: Callable[[str], None]) -> dict[str, float]:
        progress("kernels")
        return {}

    monkeypatch.setattr(calibrate, "measure_kernels", kernels)
    monkeypatch.setattr(calibrate, "measure", lambda *_: ([], 0.0))
    calibration("loopback", again=True, progress=heard.append)
    assert "in two or three minutes" in heard[0]


def compute(backward_s: float, elements: int = 1 << 24) -> Compute:
    return Compute(0.0, backward_s, ((elements, 0.0),), "")


def sentences(compute_: Compute, bits_per_s: float, systems: list[str]) -> str:
    return " ".join(advice(predict(compute_, KNOWN.costs(), systems, 4, bits_per_s, "one-machine")))


def test_where_computation_hides_communication_it_does_not_help() -> None:
    assert sentences(compute(100.0), 1e9, ["nat8"]).startswith("It will not help: computation hides")


def test_where_processors_are_the_limit_it_does_not_help() -> None:
    text = sentences(compute(0.0), 0, ["nat8", "fix32"])
    assert text.startswith("It will not help: ")
    assert "processors are the limit" in text


def test_where_tensors_are_small_it_does_not_help() -> None:
    assert "latency counts" in sentences(compute(0.0, 1000), 1e10, ["nat8"])


def test_where_the_link_is_the_limit_fewer_bytes_help() -> None:
    text = sentences(compute(0.0), 1e8, ["nat8", "fix32"])
    assert text.startswith("It will help: nat8 takes 83% less")
    assert "Adding in the network alone" in text


def test_a_format_that_is_slower_is_named() -> None:
    slow = Curve(((2, 1e-6), (8, 1e-6)))
    costs = KNOWN.costs()
    costs["fix32"] = Costs("fix32", slow, slow, slow, slow, slow)
    text = " ".join(advice(predict(compute(0.0), costs, ["nat8", "fix32"], 4, 1e8, "one-machine")))
    assert "Slower than Gloo: fix32." in text


def test_a_calibration_is_found_again() -> None:
    found = calibration("loopback")
    assert (found.samples, found.network, found.foreign_load) == (SAMPLES, "loopback", 0.0)
    costs = found.costs()
    fitted = [costs[s.system].cost(s.workers, s.bits_per_s).seconds(s.elements) for s in found.samples]
    assert fitted == pytest.approx([s.seconds for s in found.samples], rel=1e-9)


def test_a_calibration_tells_of_as_many_steps_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = SimpleNamespace(run=lambda *_: StepRun((0.1,), 1e3, 0.1, 0.1, 0.5, 0.0, 1e-3), foreign_load=0.0)
    monkeypatch.setattr("inagg_testbed.bench.step_ranks.open_step_ranks", lambda *_: nullcontext(ranks))
    plan, told = Plan(2, None, ("nat8",), (1 << 10,)), list[str]()
    calibrate.measure(plan, told.append)
    assert (told[0], told[-1], len(told)) == ("starting 2 workers", "2 workers, 4 KiB, nat8", plan.steps)


def test_a_calibration_of_another_version_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep("calibration-loopback", {"network": "loopback", "samples": [{"speed": 1}], "kernels": {}})
    monkeypatch.setattr(calibrate, "measure_kernels", lambda progress: {"nat8": 1e-9})
    measured = {n: [s for s in SAMPLES if s.workers == n] for n in (2, 8)}
    monkeypatch.setitem(calibrate.PLANS, "loopback", (Plan(2, None), Plan(8, None)))
    monkeypatch.setattr(calibrate, "measure", lambda plan, progress: (measured[plan.workers], plan.workers / 100))
    told: list[str] = []
    found = calibration("loopback", progress=told.append)
    assert told == ["the calibration that was kept is of another version: measuring anew"]
    assert set(found.samples) == set(SAMPLES)
    assert found.foreign_load == 0.08
    kept = cache.load("calibration-loopback")
    assert kept is not None
    assert from_kept(kept) == found


def test_a_calibration_that_was_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.path("calibration-loopback").unlink(missing_ok=True)
    first, second = Plan(2, None), Plan(8, None)
    measured: list[Plan] = []

    def measure(plan: Plan, progress: Callable[[str], None]) -> tuple[list[Sample], float]:
        if plan == second and len(measured) == 1 and measured[0] == first and not resumed:
            raise KeyboardInterrupt
        measured.append(plan)
        progress("a step")
        return [sample for sample in SAMPLES if sample.workers == plan.workers], 0.0

    resumed: list[bool] = []
    kernels = iter([{"nat8": 1e-9}])  # once
    monkeypatch.setitem(calibrate.PLANS, "loopback", (first, second))
    monkeypatch.setattr(calibrate, "measure_kernels", lambda _: next(kernels))
    monkeypatch.setattr(calibrate, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        calibration("loopback")
    resumed.append(True)
    told: list[str] = []
    found = calibration("loopback", progress=told.append)
    assert measured == [first, second]
    assert set(found.samples) == {sample for sample in SAMPLES if sample.workers in (2, 8)}
    assert f": 1 of {second.steps}, a step" in told[0]
    assert cache.load("calibration-loopback-unfinished") is None


@pytest.mark.parametrize(("may", "network"), [(True, "veth"), (False, "loopback")])
def test_who_may_not_make_namespaces_calibrates_over_loopback(
    monkeypatch: pytest.MonkeyPatch, may: bool, network: str
) -> None:
    def require_root() -> None:
        if not may:
            raise TopologyError("no root")

    monkeypatch.setattr(namespaces, "require_root", require_root)
    assert f"over {network};" in run("--compute-ms", "1").replace("\n", " ")


def test_there_are_ten_cases_to_check_with_and_without_root() -> None:
    assert len(set(LINK_CASES)) == len(set(LOOPBACK_CASES)) == 10
    assert {case.link for case in LOOPBACK_CASES} == {None}


def test_a_check_counts_what_is_within_fifteen_percent(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = LINK_CASES[:2]
    found = [
        Checked(one, "gloo", 1.1, 1.0, 1.0, 0.0), Checked(one, "nat8", 0.9, 1.0, 1.0, 0.0),
        Checked(two, "gloo", 1.0, 1.0, 1.0, 0.0), Checked(two, "nat8", 1.2, 1.0, 1.0, 0.0),
    ]  # fmt: skip
    assert found[3].error == pytest.approx(0.2)
    assert verdict(found) == "within 15%: 3 of 4 predictions; 1 of 2 trainings with both systems"
    print_check(found)
    assert capsys.readouterr().out.count("Gloo") == 2


def test_nothing_gained_is_zero_percent() -> None:
    assert (percent(-0.001), percent(0.001), percent(-0.25)) == ("0%", "0%", "-25%")
