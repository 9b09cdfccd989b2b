"""What CUDA's way needs besides a GPU, and what is said where it is not there. That needs neither CUDA nor Triton."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from tests.host.codec.reference import make_job
from tests.host.torch.cpu_platform import CpuPlatform, NoKernels

from inagg_host.codec.launches import NAMES
from inagg_host.torch.gpu import driver, platform
from inagg_host.torch.gpu.device import TensorDevice
from inagg_host.torch.gpu.platform import Cuda
from inagg_wire.scale import FloatType


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    """Each test warns anew, and looks for the driver anew."""
    for cached in (platform.warn_of_copies, driver._driver):
        cached.cache_clear()
    yield
    driver._driver.cache_clear()


def have(monkeypatch: pytest.MonkeyPatch, folder: Path, *programs: str, header: bool = True) -> None:
    """Only these programs are here, and Python.h if ``header``."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(folder))
    if header:
        (folder / "Python.h").touch()


def test_kernels_that_cannot_be_loaded_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    jobs = {FloatType.FLOAT32: make_job("nat8", FloatType.FLOAT32, lanes=1440)}
    for _ in range(2):
        device = TensorDevice(NoKernels(torch.device("cpu")), jobs)
        assert not device.encodes
        device.close()
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert said.getMessage().endswith("with the same bits: kernels cannot be loaded: Failed to find C compiler.")


@pytest.mark.parametrize(
    ("programs", "header", "missing"),
    [
        (["gcc"], True, {}),
        (["clang"], True, {}),
        ([], True, {"C compiler": "gcc"}),
        (["gcc"], False, {"Python.h": "python3-dev"}),
        ([], False, {"C compiler": "gcc", "Python.h": "python3-dev"}),
    ],
)
def test_what_triton_lacks_is_found(
    programs: Sequence[str], header: bool, missing: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    have(monkeypatch, tmp_path, *programs, header=header)
    assert platform.lacking() == missing


def test_a_compiler_that_is_named_and_not_there_is_lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    have(monkeypatch, tmp_path, "gcc")
    monkeypatch.setenv("CC", "icx")
    assert platform.lacking() == {"C compiler icx (CC)": "gcc"}


@pytest.mark.parametrize(
    ("header", "said"), [(True, "^gcc failed$"), (False, "gcc failed .*no Python.h.* apt-get install python3-dev")]
)
def test_what_triton_lacks_is_said_when_it_fails(
    header: bool, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(*_: object) -> NoReturn:
        raise RuntimeError("gcc failed")

    have(monkeypatch, tmp_path, "gcc", header=header)
    monkeypatch.setattr(driver, "address", lambda name: 1)
    monkeypatch.setitem(sys.modules, "inagg_host.torch.gpu.triton_kernels", SimpleNamespace(load=load))
    with pytest.raises(RuntimeError, match=said):
        Cuda(torch.device("cpu")).kernels(make_job("nat8", FloatType.FLOAT32, lanes=1440), mean=False)


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("libnowhere.so.1", "CUDA's driver is not here .*libnowhere.so.1.* install NVIDIA's driver"),
        (None, "CUDA's driver is too old: .* has no cuStreamWaitValue32_v2.* Install NVIDIA's driver 515"),
    ],
)
def test_a_driver_that_is_not_there_is_said_to_be_missing(
    library: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", library)  # None: this process itself, which has no such function
    with pytest.raises(RuntimeError, match=said):
        Cuda(torch.device("cpu"))


@pytest.mark.parametrize("function", [NAMES[0], NAMES[1], NAMES[3]])
def test_a_device_that_cannot_do_what_it_has_to_is_found_out_at_once_and_its_streams_are_given_back(
    function: str,
) -> None:
    here = CpuPlatform(torch.device("cpu"))
    here.refused = function
    with pytest.raises(RuntimeError, match=function):
        TensorDevice(here, {})
    assert [stream.closed for stream in here._streams.values()] == [True] * 4


def test_where_streams_cannot_wait_for_words_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(cuGetErrorString=lambda code, text: 0))
    assert "give tensors on the CPU" in str(driver.DriverError(NAMES[0], 801))
    assert "give tensors on the CPU" not in str(driver.DriverError(NAMES[0], 1))
