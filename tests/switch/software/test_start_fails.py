"""Shards that cannot start, or have died: what is said of them, and that nothing of them is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.switch.aggregation.world import make_binding

from inagg_switch.driver import DriverError
from inagg_switch.software import shard
from inagg_switch.software.config import SoftwareConfig, Started
from inagg_switch.software.shard_process import SHORT_OF_MEMORY, ShardProcess
from inagg_switch.software.software_driver import SoftwareDriver

PATIENCE_S = 30.0


@pytest.fixture
def driver() -> Iterator[SoftwareDriver]:
    with closing(SoftwareDriver(SoftwareConfig(slots=4))) as driver:
        yield driver


def end(driver: SoftwareDriver) -> None:
    """Somebody else kills its shard."""
    os.kill(driver.started[0].pid, signal.SIGKILL)
    driver.wait_for_death(0)


def refuse(process: ShardProcess) -> Started:
    raise DriverError("it does not start, for a test")


def test_a_shard_for_which_there_is_no_memory_says_what_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> Any:
        raise MemoryError

    wires = SimpleNamespace(link=SimpleNamespace(batch_datagrams=1))
    monkeypatch.setattr(shard, "LinkStack", lambda *_: wires)
    monkeypatch.setattr(shard, "Aggregator", none)
    ours, theirs = multiprocessing.Pipe()
    with closing(ours), closing(theirs), ThreadPoolExecutor(1) as pool:  # it blocks signals of its thread
        pool.submit(shard.serve, SoftwareConfig(slots=4), 0, theirs).result(PATIENCE_S)
        assert ours.poll(0), "else the switch says that the shard has died"
        said = ours.recv()
    assert isinstance(said, DriverError)
    assert str(said).startswith("4 slots of ")
    assert str(said).endswith(": choose fewer with --slots, or a smaller --datagram-bytes")


def test_a_shard_that_had_died_before_was_not_killed_for_a_reason_of_ours(driver: SoftwareDriver) -> None:
    end(driver)
    driver.kill(0, "it was to end")
    assert driver.died() == f"shard 0 has died (signal SIGKILL: {SHORT_OF_MEMORY})"


def test_of_a_shard_that_does_not_start_again_nothing_is_left(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(driver)
    before = set(multiprocessing.active_children())
    monkeypatch.setattr(ShardProcess, "started", refuse)
    with pytest.raises(DriverError, match="it does not start"):
        driver.restart(0)
    assert set(multiprocessing.active_children()) <= before


def test_of_shards_of_which_one_does_not_start_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(multiprocessing.active_children())
    monkeypatch.setattr(ShardProcess, "started", refuse)
    with pytest.raises(DriverError, match="it does not start"):
        SoftwareDriver(SoftwareConfig(slots=4, shards=2))
    assert set(multiprocessing.active_children()) <= before


def test_all_shards_take_as_much_at_once_as_the_one_that_was_granted_least() -> None:
    """Credit is reckoned from it: ranks that had more out would overrun the smaller buffer."""
    granted: Any = [
        SimpleNamespace(started=lambda size=size: Started(("127.0.0.1", 9), 1, True, True, size, size, None))
        for size in (3000, 1000, 2000)
    ]
    assert SoftwareDriver(SoftwareConfig(slots=4, shards=3), granted).limits.receive_bytes == 1000


def test_a_recording_has_no_job_that_was_refused(tmp_path: Path) -> None:
    """It is computed again, and the refusal would end that."""
    path = tmp_path / "run.rec"
    with closing(SoftwareDriver(SoftwareConfig(slots=4, record=path))) as driver:
        driver.bind(0, make_binding(7, n=2))
        with pytest.raises(DriverError):
            driver.bind(0, make_binding(8, n=2))  # the same slots
    assert path.read_bytes().count(b'"note":"bind"') == 1
