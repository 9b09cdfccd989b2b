"""The pictures: that each is one, for ordinary and for meagre data. How they look is for people."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason='pictures need matplotlib: pip install ".[report]"')

from inagg_testbed.bench.options import size_text
from inagg_testbed.report import figures
from inagg_testbed.report.history import Exponents, History, StepBar, Throughput, count_exponents


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


TRAININGS = [
    History("software", "nat8", [2.0, 1.0, 0.5], [0.5, 0.9], [1e-3, 2e-3, 1e-3], [0, 1, 1]),
    History("gloo", "float32", [2.0, 1.1, 0.4], [0.5, 0.8]),
]


def test_a_report_has_pictures_of_one_width() -> None:
    points = [Throughput(s, "nat8", n, e, 1e8) for s in ("inagg", "gloo") for n in (2, 4) for e in (256, 1 << 20)]
    bars = [StepBar("switch", {"forward": 1.0, "backward": 2.0, "communication not hidden": 0.5})]
    pictures = [
        figures.curves(TRAININGS),
        figures.round_trips(TRAININGS[:1]),
        figures.throughput(points),
        figures.breakdown(bars),
        figures.exponents(Exponents("nat8", 29, {0: 5, -3: 10, -40: 1}, 4)),
        figures.errors(["a", "b"], [0.1, -0.3]),
    ]
    assert {size(png)[0] for png in pictures} == {int(figures.WIDTH * figures.DPI)}


def test_a_training_without_steps_can_be_drawn() -> None:
    empty = [History("software", "nat8")]
    assert size(figures.curves(empty)) == size(figures.round_trips(empty))


def test_the_exponents_are_counted_below_the_scale_of_their_block() -> None:
    # scales: 8 (of 5.0, rounded up) and 4 (a power of two is its own scale)
    values = np.array([5.0, 4.0, -1.0, 0.0, 4.0, -0.5, 0.75], np.float32)
    found = count_exponents(values, 4, "nat8", 3)
    assert found.counts == {-1: 2, -3: 3, 0: 1}
    assert found.zeros == 1
    assert found.elements == len(values)
    assert found.inside == pytest.approx(3 / 6)


def test_gradients_that_are_all_zero_have_no_exponents() -> None:
    found = count_exponents(np.zeros(5, np.float32), 4, "nat8", 29)
    assert (found.counts, found.zeros, found.elements) == ({}, 5, 5)
    assert found.inside == 0


@pytest.mark.parametrize(("size", "text"), [(4, "4 B"), (65536, "64 KiB"), (3 << 20, "3 MiB"), (1 << 30, "1 GiB")])
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("values", [[1.0], [2.5, 0.0, 1e9], [-1.0, 3.0], [0.0]])
def test_bars_are_drawn_of_any_numbers(values: list[float]) -> None:
    """A stage of a switch may be measured as less than nothing, which it nearly is."""
    names = [f"row {number}" for number in range(len(values))]
    width, height = size(figures.bars(names, values, "elements/s"))
    assert width > height > 0


def test_nothing_is_said_where_matplotlib_can_keep_nothing() -> None:
    env = {name: value for name, value in os.environ.items() if name != "MPLCONFIGDIR"}
    env |= {"HOME": "/proc/none", "XDG_CONFIG_HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"}
    command = [sys.executable, "-c", "import inagg_testbed.report.figures"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr == ""
