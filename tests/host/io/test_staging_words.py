"""What one side of a staging writes is there when the other sees the word of it."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.codec import Job, staged
from inagg_host.codec.ordered import load
from inagg_host.codec.staging import Staging
from inagg_host.codec.table import Column
from inagg_host.core import Engine, Epoch, ShardLease
from inagg_host.core.operation import Request
from inagg_host.core.schedule import Phase
from inagg_link.jit import jit
from inagg_testbed.kernel_calls import make_table
from inagg_wire.formats import job_format
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

from .fake_device import FakeDevice
from .rig import JOB, LANES, PATIENCE_S, SEED, TOKEN

SPINS_MOST = 1 << 33
"""Some seconds."""


@jit
def _when(word: int, rows: npt.NDArray[Any], found: npt.NDArray[Any]) -> bool:
    """Spin on a word, and copy what is there when it comes, the last first. Whether it has come."""
    spins = 0
    while load(word) == 0:
        spins += 1
        if spins == SPINS_MOST:
            return False
    for i in range(rows.shape[0] - 1, -1, -1):
        for j in range(rows.shape[1] - 1, -1, -1):
            found[i, j] = rows[i, j]
    return True


def _seen(word: int, rows: npt.NDArray[Any], tell: Callable[[], object]) -> npt.NDArray[Any]:
    """What of ``rows`` is there, for another thread, when ``tell`` has brought a word."""
    found, compiled, begun, came = rows.copy(), np.ones(1, np.int64), threading.Event(), list[bool]()
    _when(compiled.ctypes.data, rows, found)

    def watch() -> None:
        begun.set()
        came.append(_when(word, rows, found))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun.wait()
    time.sleep(0.01)
    tell()
    watcher.join(PATIENCE_S)
    assert came == [True]
    return found


@pytest.fixture
def large() -> tuple[Engine, Staging]:
    """An operation of one large chunk."""
    fmt, lease = job_format("nat8"), Lease(0, 1 << 13)
    engine = Engine(Epoch(1, JOB, TOKEN, fmt, 2, 0, LANES, SEED, (ShardLease(("127.0.0.1", 1), lease),)))
    blocks = engine.chunk
    job = Job(fmt, 2, 0, LANES, SEED, FloatType.FLOAT32)
    staging = Staging(FakeDevice(random.Random(0)).board(job, blocks, engine.chunk), engine.chunk, lambda: None)
    nowhere = np.broadcast_to(np.zeros(1, np.float32), blocks * LANES)
    engine.submit(Request(nowhere, nowhere, FloatType.FLOAT32, codec=staging), 0.0)
    assert blocks > 1000
    return engine, staging


KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)


def test_rows_are_there_when_a_chunk_is_agreed_on(large: tuple[Engine, Staging]) -> None:
    engine, staging = large
    (operation,), board = engine.operations, staging.board
    operation.agreed[:] = np.arange(operation.agreed.size) % 200 + 1
    tell, address = KERNEL(staged.staged_addresses().tell), int(engine.state.operations[0]["address"])
    for rows, bits in (
        (board.sending, operation.shape.job.for_encode),
        (board.receiving, operation.shape.job.for_decode),
    ):
        last = rows[-100:, : Column.MANTISSA + 1]
        board.agreed[:] = 0
        rows[:] = 0
        found = _seen(board.agreed.ctypes.data, last, lambda: tell(address, Phase.SCALE, 0, 0, 0))
        expected = make_table(operation.shape.job, operation.agreed, operation.agreed, bits.fraction_bits)
        assert found.tolist() == expected[-100:, : Column.MANTISSA + 1].tolist()


def test_results_are_there_when_a_chunk_is_complete(large: tuple[Engine, Staging]) -> None:
    engine, staging = large
    (operation,), board = engine.operations, staging.board
    decode, record = KERNEL(staged.staged_addresses().decode), engine.state.operations[0]
    blocks, size = board.magnitudes.size, operation.shape.job.result_bytes
    rng, count = np.random.default_rng(0), 1000
    datagrams = rng.integers(0, 256, (count, size), np.uint8)
    record["data"], record["data_bytes"] = datagrams.ctypes.data, datagrams.nbytes
    staging._left[0] = count  # all others are there
    engine.state.places[:count] = np.arange(count)
    engine.state.blocks[:count] = blocks - count + np.arange(count)
    last = board.results.reshape(blocks, -1)[-100:]
    found = _seen(board.complete.ctypes.data, last, lambda: decode(int(record["address"]), size, 0, count, 0))
    assert found.tolist() == datagrams[-100:, HEADER_BYTES:].tolist()
