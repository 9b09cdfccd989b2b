"""Benchmarks on a GPU, where there is none."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from inagg_testbed.bench.cli import bench

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@needs_no_gpu
@pytest.mark.parametrize("command", ["kernels", "allreduce", "overlap"])
def test_without_a_gpu_they_say_so_in_a_line(command: str) -> None:
    result = CliRunner().invoke(bench, [command, "--device", "cuda"])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line == f"Error: --device cuda: torch {torch.__version__} finds no CUDA device"


def test_other_links_and_switches_are_not_for_a_gpu() -> None:
    result = CliRunner().invoke(bench, ["allreduce", "--device", "cuda", "--loss", "0.1"])
    assert result.exit_code == 2
    assert "--device cuda is over loopback" in result.output
