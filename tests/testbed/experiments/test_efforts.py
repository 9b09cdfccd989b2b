"""What experiments make of methods that did not reach the accuracy: no figure that a claim is within."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inagg_testbed.experiments import smoothness
from inagg_testbed.experiments.model import Run
from inagg_testbed.experiments.quadratic import Effort, over

DONE = Effort(20, 100.0, 100.0, 0.0, True, [(0.0, 1.0)])


def test_a_ratio_of_efforts_is_none_unless_both_reached_the_accuracy() -> None:
    assert over(20, 10, DONE, DONE) == 2.0
    assert math.isnan(over(20, 10, DONE, replace(DONE, reached=False)))


def test_methods_that_all_ran_to_the_limit_are_no_proof_of_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took as many iterations as the others: "at least 1.0 times as many" held."""
    monkeypatch.setattr(smoothness, "solved", lambda *given: (replace(DONE, reached=False), 0.1))
    monkeypatch.setattr(smoothness, "changed_by_loss", lambda settings: 0)
    outcome = smoothness.run(Run(tiny=True))
    compared = [figure for figure in outcome.figures if " over " in figure.name and "DIANA" in figure.name]
    assert len(compared) == 8
    assert not any(figure.within_tolerance for figure in compared)
