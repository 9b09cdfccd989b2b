"""What the demo's report says, and what rank 0 notes for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib", reason='pictures need matplotlib: pip install ".[report]"')

from inagg_testbed.demo_training import Outcome
from inagg_testbed.report.demo import demo_report
from inagg_testbed.report.history import Exponents, History
from inagg_testbed.training import watch
from inagg_testbed.training.watch import Watch


def outcome(system: str, format_: str) -> Outcome:
    return Outcome(system, format_, [1], [0.953], [0.1], [7], 12.5, 75000, 3, True)


def test_a_report_of_both_trainings_has_all_pictures(tmp_path: Path) -> None:
    exponents = Exponents("nat8", 29, {-3: 10}, 1)
    soft = History("software", "nat8", [2.0, 1.0], [0.9], [1e-3, 1e-3], [0, 1], 8.0, {"encode": 0.25}, exponents)
    gloo = History("gloo", "float32", [2.0, 1.0], [0.9], computing_ms=9.0)
    lines = [
        {"system": s, "format": f, "workers": 2, "elements": 256, "median_s": 1e-3, "elements_per_s": 256e3}
        for s, f in (("inagg", "nat8"), ("gloo", "float32"))
    ]
    lines.append({"workers": 2, "format": "nat8", "elements": 256, "ratio_to_gloo": 1.25})
    trainings = [(outcome("software", "nat8"), soft), (outcome("gloo", "float32"), gloo)]
    page = demo_report(tmp_path / "r.html", trainings, "2 workers", lines).read_text()
    assert page.count("data:image/png;base64,") == 5
    for text in ("95.3%", "75,000", "encode 0.25 ms", "1.25", "1 KiB"):
        assert text in page


def test_a_report_tells_a_tree_from_one_switch(tmp_path: Path) -> None:
    tree = History("tree", "nat8", [2.0, 1.0], [0.9])
    lines: list[dict[str, object]] = [
        {"system": s, "format": f, "workers": 4, "elements": 256, "median_s": 1e-3, "elements_per_s": 256e3}
        for s, f in (("inagg", "nat8"), ("inagg-tree", "nat8"), ("gloo", "float32"))
    ]
    lines.append({"workers": 4, "format": "nat8", "elements": 256, "ratio_to_gloo": 1.25, "tree_to_gloo": 2.75})
    page = demo_report(tmp_path / "r.html", [(outcome("tree", "nat8"), tree)], "4 workers in racks", lines).read_text()
    assert "with the bits that one switch" in page
    rows = [line for line in page.splitlines() if "nat8" in line and "KiB" in line]
    text = " ".join(rows)
    assert text.index("1.25") < text.index("tree, nat8") < text.index("2.75")


def test_a_report_of_gloo_alone_has_what_there_is(tmp_path: Path) -> None:
    gloo = History("gloo", "float32", [2.0, 1.0], [0.9])
    page = demo_report(tmp_path / "r.html", [(outcome("gloo", "float32"), gloo)], "2 workers").read_text()
    assert page.count("data:image/png;base64,") == 2


def test_the_gradients_of_one_step_are_kept_and_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EXPONENTS_STEP", 1)
    seen = Watch("software", "nat8", 4)
    reduced: list[torch.Tensor] = []

    def inner(state: object, bucket: SimpleNamespace) -> None:
        reduced.append(bucket.buffer().clone())
        bucket.buffer().zero_()  # in place, as a reduction is

    hook = seen.hook(inner)  # type: ignore[arg-type]
    for step in range(3):
        hook(None, SimpleNamespace(buffer=lambda step=step: torch.tensor([2.0**-step, 1.0])))  # type: ignore[arg-type]
        seen.after_step(0.5)
    history = seen.finish()
    assert [tensor.tolist() for tensor in reduced] == [[1.0, 1.0], [0.5, 1.0], [0.25, 1.0]]
    assert history.exponents == Exponents("nat8", 29, {-1: 1, 0: 1}, 0)
    assert history.losses == [0.5] * 3


def test_counters_are_noted_by_step() -> None:
    counters = SimpleNamespace(rtt_s=2e-3, resent=0, encode_s=0.2, decode_s=0.1, network_s=0.0, idle_s=0.4)
    seen = Watch("software", "nat8", 4, SimpleNamespace(counters=counters))
    seen.after_step(1.0)
    counters.resent = 3
    seen.after_step(0.5)
    history = seen.finish()
    assert history.resent == [0, 3]
    assert history.round_trips_s == [2e-3] * 2
    assert history.transport_ms == pytest.approx({"encode": 100, "decode": 50, "sockets": 0, "waiting": 200})


def test_timing_computation_changes_no_parameter() -> None:
    model = nn.Linear(3, 2)
    before = [p.detach().clone() for p in model.parameters()]
    seen = Watch("gloo", "float32", 2)
    seen.time_computing(model, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    assert seen.history.computing_ms > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
