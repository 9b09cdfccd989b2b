"""`inagg bench kernels`: that it measures, not what."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.host.torch import ops

from inagg_testbed.bench import cuda, kernels_gpu
from inagg_testbed.bench.cli import bench
from inagg_testbed.bench.kernels import KernelRate
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

SMALL = ["kernels", "--format", "nat8", "--float-type", "float32", "--elements", "10000", "--runs", "3"]


def test_json_lines() -> None:
    result = CliRunner().invoke(bench, [*SMALL, "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    lines = [line for line in lines if not line["kernel"].startswith("gpu-")]
    assert [line["kernel"] for line in lines] == ["absmax", "encode", "decode"]
    for line in lines:
        assert list(line) == [
            "bench",
            "kernel",
            "format",
            "float_type",
            "elements",
            "median_s",
            "elements_per_s",
            "bytes_per_s",
            "copy_bytes_per_s",
            "ratio_to_copy",
            "runs",
            "setup",
        ]
        assert (line["bench"], line["format"], line["float_type"]) == ("kernels", "nat8", "float32")
        assert (line["elements"], line["runs"]) == (10000, 3)
        assert line["elements_per_s"] == pytest.approx(10000 / line["median_s"])
        assert line["bytes_per_s"] == pytest.approx(40000 / line["median_s"])
        assert line["ratio_to_copy"] == pytest.approx(line["bytes_per_s"] / line["copy_bytes_per_s"])


@pytest.mark.skipif(cuda.why_not() is None, reason="there is a GPU")
def test_that_no_gpu_was_measured_is_said() -> None:
    result = CliRunner().invoke(bench, [*SMALL, "--json"])
    assert result.stderr.startswith("SKIPPED the kernels of the GPU: ")


def measure_on(device: torch.device, kernels: Any) -> list[KernelRate]:
    formats, types = [job_format(name) for name in ("nat8", "tern")], [FloatType.BFLOAT16]
    rates = kernels_gpu.measure_all(formats, types, workers=4, elements=5000, runs=2, device=device, kernels=kernels)
    return list(rates)


def test_the_device_is_measured_kernel_by_kernel() -> None:
    """The CPU stands in for it."""
    rates = measure_on(torch.device("cpu"), ops)
    assert [rate.kernel for rate in rates] == 2 * ["gpu-absmax", "gpu-encode", "gpu-decode"]
    for rate in rates:
        assert rate.elements_per_s == pytest.approx(5000 / rate.median_s)
        assert rate.bytes_per_s == pytest.approx(10000 / rate.median_s)
        assert rate.ratio_to_copy == pytest.approx(rate.bytes_per_s / rate.copy_bytes_per_s)


@pytest.mark.gpu
def test_the_gpu_is_measured() -> None:
    assert len(measure_on(torch.device("cuda"), importlib.import_module("inagg_host.torch.gpu.triton_kernels"))) == 6


def test_the_table_for_people() -> None:
    result = CliRunner().invoke(bench, SMALL)
    assert result.exit_code == 0, result.output
    for word in ("absmax", "encode", "decode", "nat8", "float32"):
        assert word in result.output
