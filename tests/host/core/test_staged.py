"""Operations whose values are on devices, over a bad network: the bits are those of the CPU, whatever comes when."""

from __future__ import annotations

import pytest
from tests.host.io import fake_device
from tests.host.sim.staged import check_staged_run

from inagg_host.codec import staging

RUNS, BATCH = 120, 20


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that operations have several, and thousands of devices little memory."""
    monkeypatch.setattr(staging, "RUN_BLOCKS_MOST", 3)
    for where in (staging, fake_device):
        monkeypatch.setattr(where, "SLOT_BYTES", 1 << 16)


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_runs_on_fake_devices_are_exact(first: int) -> None:
    for seed in range(first, first + BATCH):
        check_staged_run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(RUNS, 2000, 100))
def test_more_runs_on_fake_devices_are_exact(first: int) -> None:
    for seed in range(first, first + 100):
        check_staged_run(seed)


def test_the_runs_contain_what_can_go_wrong_with_devices() -> None:
    runs = [check_staged_run(seed) for seed in range(0, RUNS, 10)]
    assert any(device.mended for run in runs for device in run.devices)
    assert any(tensor.scatters for run in runs for tensor in run.world.tensors)
    assert any(tensor.in_place for run in runs for tensor in run.world.tensors)
    assert any(tensor.value_blocks(run.world.lanes) > 6 for run in runs for tensor in run.world.tensors), "of 3 runs"
