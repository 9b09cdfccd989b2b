"""`inagg bench training`: real trainings over shaped links, and what is made of them."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

from inagg import extras
from inagg_testbed.bench import training as training_bench
from inagg_testbed.bench import training_command
from inagg_testbed.bench.options import option_word
from inagg_testbed.bench.training import Found, lines_of
from inagg_testbed.bench.training_command import training
from inagg_testbed.bench.training_ranks import Outcome, Phase, Run
from inagg_testbed.bench.training_systems import BASELINE, SYSTEMS, WARM_UP, Place

LINK = "1gbit"
SYSTEM_NAMES = (BASELINE, "inagg nat8", "inagg nat4")


def found(system: str, losses: list[float], steady_s: float) -> Found:
    curve = [(10 * (i + 1), loss, 1 - loss) for i, loss in enumerate(losses)]
    phases = {LINK: (Phase(1.0, 100, 100), Phase(steady_s, 10, 10))}
    return Found("text", system, curve, [losses[-1]], [1 - losses[-1]], phases)


def test_seconds_to_a_loss_are_steps_times_what_they_take_and_those_of_the_warm_up_are_counted_as_they_were() -> None:
    base = found(BASELINE, [0.9, 0.7, 0.5, 0.4, 0.3], 0.5)
    quick, never = found("quick", [0.8, 0.4, 0.3, 0.3, 0.2], 0.1), found("never", [0.9] * 5, 0.1)
    lines = {line["system"]: line for line in lines_of([base, quick, never], [LINK])}
    assert lines[BASELINE]["target_loss"] == 0.4
    assert lines[BASELINE][LINK]["seconds_to_loss"] == WARM_UP * 1.0 + 30 * 0.5
    assert lines["quick"]["loss_at_step"] == 20
    assert lines["quick"][LINK]["seconds_to_loss"] == pytest.approx(WARM_UP * 1.0 + 10 * 0.1)
    assert lines["never"][LINK]["seconds_to_loss"] is None
    assert lines["quick"][LINK]["bytes"] == WARM_UP * 200 + 40 * 20


def test_a_system_that_failed_says_why_and_spoils_no_other() -> None:
    lost = Found("text", "lost", failed="it cannot")
    lines = list(lines_of([found("quick", [0.5, 0.4], 0.1), lost], [LINK]))
    assert lines[1] == {"bench": "training", "task": "text", "system": "lost", "failed": "it cannot"}
    assert "target_loss" not in lines[0], "there is no baseline"


def test_steps_are_timed_over_links_without_a_rate_too(monkeypatch: pytest.MonkeyPatch) -> None:
    here = nullcontext(SimpleNamespace(control="127.0.0.1:1", workers=range(2)))
    runs: list[Run] = []
    seconds = itertools.cycle([1.0, 9.0, 2.0])

    def answer(children: list[SimpleNamespace], _: float) -> list[Outcome]:
        phase = Phase(next(seconds), 100, 100)
        return [Outcome(((50, 0.5, 0.5),), phase, phase)] * len(children)

    monkeypatch.setattr(training_bench, "open_topology", lambda *_: here)
    monkeypatch.setattr(training_bench, "start_target", lambda *_: here)

    def tell(children: list[SimpleNamespace], run: Run, limit_s: float) -> list[Outcome]:
        runs.append(run)
        return answer(children, limit_s)

    monkeypatch.setattr(training_bench, "Child", lambda *_: SimpleNamespace(close=lambda: None, kill=lambda: None))
    monkeypatch.setattr(training_bench, "receive_all", lambda *_: None)
    monkeypatch.setattr(training_bench, "ask", tell)
    made: list[Found] = []
    training_bench.bench_training(made, ["digits"], [BASELINE], ["none", LINK], 2, 1, 50, lambda _: None)
    assert [run.steps for run in runs] == [50, *[training_bench.TIMED_STEPS] * 2 * training_bench.TURNS]
    (line,) = lines_of(made, ["none", LINK])
    assert line["none"]["steady"] == line[LINK]["steady"] == asdict(Phase(2.0, 100, 100)), "the median over turns"


def test_systems_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was timed once, minutes after another."""
    here = nullcontext(SimpleNamespace(control="127.0.0.1:1", workers=range(2)))
    done: list[tuple[str, str | None]] = []
    told: list[str] = []

    def noted(_topology: object, _environment: object, link: str | None, system: str, *_: object) -> None:
        done.append((system, link))

    monkeypatch.setattr(training_bench, "open_topology", lambda *_: here)
    monkeypatch.setattr(training_bench, "start_target", lambda *_: here)
    monkeypatch.setattr(training_bench, "_one_system", noted)
    systems = SYSTEM_NAMES[:2]
    training_bench.bench_training([], ["digits"], systems, [LINK], 2, 1, 50, told.append)
    assert done == [(system, None) for system in systems] + [(system, LINK) for system in systems] * 3
    assert len(told) == training_bench.rounds([LINK]) * len(systems)


def test_what_was_measured_before_it_was_broken_off_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    here = nullcontext(SimpleNamespace(control="127.0.0.1:1", workers=range(2)))
    phase = Phase(1.0, 100, 100)
    told = iter([Outcome(((50, 0.5, 0.625),), phase, phase)] * 4)  # of each system that it has started, and a training

    def answer(children: list[SimpleNamespace], _: float) -> list[Outcome]:
        for outcome in told:
            return [outcome] * len(children)
        raise KeyboardInterrupt

    monkeypatch.setattr(training_bench, "open_topology", lambda *_: here)
    monkeypatch.setattr(training_bench, "start_target", lambda *_: here)
    monkeypatch.setattr(training_bench, "Child", lambda *_: SimpleNamespace(close=lambda: None, kill=lambda: None))
    monkeypatch.setattr(training_bench, "receive_all", answer)
    monkeypatch.setattr(training_bench, "ask", lambda children, _, limit_s: answer(children, limit_s))
    options = ["--task", "digits", "--seeds", "1", *(word for name in SYSTEM_NAMES for word in ("--system", name))]
    shown = CliRunner().invoke(training, [*options, "--link", LINK])
    assert "62.5%" in shown.output, "the first was trained"
    assert f"{SYSTEM_NAMES[-1]} failed: broken off" in shown.output
    assert shown.exit_code != 0


def summed_in_bfloat16() -> list[list[float]]:
    """A gradient. The model has gone before its group goes: else it takes the group along with Python's lock in hand,
    and PyTorch's destructor waits for ever for a thread of Gloo's that wants the lock to drop its last callback."""
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    trainer = SYSTEMS["gloo bf16"](network, optimizer, Place(0, 1, "127.0.0.1", None))
    trainer.forward(torch.full((1, 3), 1 + 2**-10)).sum().backward()
    assert network.weight.grad is not None
    gradient: list[list[float]] = network.weight.grad.tolist()
    return gradient


@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")  # PyTorch 2.7 has no other
def test_bfloat16_goes_over_gloo(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert summed_in_bfloat16() == [[1.0] * 3] * 2, "which has 8 bits"
    finally:
        dist.destroy_process_group()


def test_names_that_are_none_are_told_with_those_that_are() -> None:
    done = CliRunner().invoke(training, ["--task", "chess"])
    assert done.exit_code == 2
    assert "no task 'chess': text, digits, cifar" in done.output


@pytest.mark.root
def test_names_that_options_take_are_those_of_the_systems() -> None:
    """The help has a list of its own, as torch takes seconds to import."""
    assert tuple(SYSTEMS) == training_command.SYSTEM_NAMES
    words = [option_word(name) for name in SYSTEMS]
    assert len(set(words)) == len(words)
    assert option_word("inagg tern + EF") == "inagg-tern-ef"
    shown = CliRunner().invoke(training, ["--help"]).output
    assert "gloo-float32" in shown


def test_a_system_that_is_asked_for_and_cannot_be_tried_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "missing", lambda *names: [name for name in names if name == "torchft"])
    done = CliRunner().invoke(training, ["--system", "gloo-diloco"])
    assert done.exit_code == 2
    assert "pip install '.[torchft]'" in done.stderr


@pytest.mark.slow
def test_nat8_learns_as_gloo_does_with_a_quarter_of_the_bytes() -> None:
    arguments = ["--task", "digits", "--system", BASELINE, "--system", "inagg nat8", "--seeds", "1", "--steps", "100"]
    done = CliRunner().invoke(training, [*arguments, "--link", LINK, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    gloo, ours = map(json.loads, done.stdout.splitlines())
    assert abs(gloo["loss"] - ours["loss"]) < 0.15
    assert ours[LINK]["bytes"] < gloo[LINK]["bytes"] / 4
