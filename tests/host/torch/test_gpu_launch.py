"""What compiled code launches is what Triton would: the same kernels with the same arguments. That needs Triton, which
comes with the CUDA builds of torch, and no GPU: what would load and launch kernels notes them here."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.host.codec.reference import make_job
from tests.host.torch.cpu_platform import LAUNCH_CALL, WORD_CALL, memory

from inagg_host.codec import Job
from inagg_host.codec.launches import BASE_BLOCKS, DECODE, DECODED_CHUNKS, ENCODE, LARGEST, Calls
from inagg_host.codec.staging import Board
from inagg_host.torch.gpu.device import Operand, TensorDevice
from inagg_host.torch.gpu.floats import DTYPES
from inagg_host.torch.gpu.platform import Kernels
from inagg_host.torch.gpu.stream import DeviceStream
from inagg_wire.scale import FloatType

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: it comes with the CUDA builds of torch; or run: pip install triton",
)

HERE = torch.device("cpu")
BLOCKS, CHUNK = 150, 10
Launched = tuple[int, tuple[int, int, int], int, int, tuple[int, ...]]
"""What the driver calls a kernel, the grid, threads, shared memory and arguments."""


class TritonDriver:
    """In place of Triton's own driver of CUDA: kernels are compiled for an H100, and launches noted."""

    def __init__(self) -> None:
        self.launched: list[Launched] = []
        self.utils = SimpleNamespace(
            load_binary=self._load, get_device_properties=lambda device: {"max_shared_mem": 232448},
            unload_module=lambda module: None,
        )  # fmt: skip
        self._loaded = 0

    def _load(self, *_: object) -> tuple[int, int, int, int, int]:
        self._loaded += 1
        return self._loaded, 1000 + self._loaded, 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        constants = {at for at, kind in enumerate(source.signature.values()) if kind == "constexpr"}

        def launch(x: int, y: int, z: int, _stream: int, function: int, *others: Any) -> None:
            given = others[4:]  # after metadata of the kernel and the launch, and two hooks
            arguments = tuple(
                one.data_ptr() if isinstance(one, torch.Tensor) else one
                for at, one in enumerate(given) if at not in constants
            )  # fmt: skip
            self.launched.append((function, (x, y, z), 32 * metadata.num_warps, metadata.shared, arguments))

        return launch

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class Notes:
    """The platform: kernels of Triton's, and functions in place of CUDA's driver that note what they are to launch."""

    copied_bytes = 0

    def __init__(self) -> None:
        self.device = HERE
        self.launched: list[Launched] = []
        nothing = WORD_CALL(lambda *_: 0)
        self._functions: list[Any] = [nothing, nothing, LAUNCH_CALL(self._launch), nothing]
        self.calls = Calls(*(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions))

    def can_encode(self) -> bool:
        return True

    def here(self) -> AbstractContextManager[None]:
        return nullcontext()

    def stream(self) -> DeviceStream:
        return DeviceStream(HERE)

    def kernels(self, job: Job, mean: bool) -> Kernels:
        from inagg_host.torch.gpu import triton_kernels

        self.loaded = triton_kernels.load(job, HERE, mean)
        return self.loaded

    def check(self, failed: int) -> None:
        assert failed == 0

    def _launch(
        self, function: int, x: int, y: int, z: int, threads: int, wide: int, high: int, shared: int, _stream: int,
        pointers: int, extra: int,
    ) -> int:  # fmt: skip
        assert (wide, high, extra) == (1, 1, 0)
        kernels = zip(self.loaded, (LARGEST, ENCODE, DECODE), strict=True)
        counts = {kernel.function: len(dtype.names or ()) for kernel, dtype in kernels}
        at = memory(pointers, counts[function], torch.int64).tolist()
        words = tuple(ctypes.c_int64.from_address(one).value for one in at)
        self.launched.append((function, (x, y, z), threads, shared, words))
        return 0


@pytest.fixture
def triton_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonDriver]:
    import triton

    from inagg_host.torch.gpu import triton_decode, triton_encode

    driver = TritonDriver()
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    with pytest.MonkeyPatch.context() as caches:
        for kernel in (triton_encode._largest, triton_encode._encode, triton_decode._decode):
            caches.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
        yield driver
    gc.collect()  # what it has loaded, it unloads


def rows(array: Any, first: int) -> torch.Tensor:
    """Of a block, and what comes after it."""
    return torch.from_numpy(array[first:]).view(-1)


def launch_by_triton(
    driver: TritonDriver, job: Job, board: Board, operand: Operand, ties: torch.Tensor, own: range, divisor: int
) -> list[Launched]:
    """All kernels of an operation, each from Python."""
    from inagg_host.torch.gpu import triton_kernels

    driver.launched.clear()
    lanes, found = job.lanes, torch.from_numpy(board.magnitudes.view(f"i{board.magnitudes.itemsize}"))
    triton_kernels.largest(operand.values, lanes, found)
    size = job.for_encode.payload_bytes
    for first in range(0, BLOCKS, CHUNK):
        base = first // BASE_BLOCKS * BASE_BLOCKS
        triton_kernels.encode(
            job, operand.values[first * lanes : (first + CHUNK) * lanes], rows(board.sending, base),
            rows(board.codes, base * size), rows(board.flags, base), rows(board.ties, 0), ties, first - base, CHUNK,
            first,
        )  # fmt: skip
    size, step = job.for_decode.payload_bytes, DECODED_CHUNKS * CHUNK
    for begin in range(0, BLOCKS, step):
        first, end = max(begin, own.start), min(begin + step, own.stop)
        base, to = first // BASE_BLOCKS * BASE_BLOCKS, first - own.start
        triton_kernels.decode(
            job, rows(board.results, base * size), rows(board.receiving, base),
            operand.out[to * lanes : (to + end - first) * lanes], rows(board.invalid, base), first - base, end - first,
            divisor,
        )  # fmt: skip
    return list(driver.launched)


@pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())
@pytest.mark.parametrize("name", ["nat8", "fix32"])
@pytest.mark.parametrize("divisor", [1, 3])
def test_launches_are_those_of_triton(
    name: str, float_type: FloatType, divisor: int, triton_driver: TritonDriver
) -> None:
    job, platform, own = make_job(name, float_type, lanes=1440), Notes(), range(7, BLOCKS - 3)
    device = TensorDevice(platform, {})
    device._jobs[float_type, divisor != 1] = record = device._describe(job, divisor != 1)
    device._jobs[float_type, False] = record
    values = torch.zeros(BLOCKS * job.lanes - 5, dtype=DTYPES[float_type])
    operand = Operand(values, torch.zeros(len(own) * job.lanes - 2, dtype=values.dtype))
    board = device.board(job, BLOCKS, CHUNK)
    device.launch(operand, job, board, CHUNK, own, divisor)
    theirs = launch_by_triton(triton_driver, job, board, operand, device._ties, own, divisor)
    assert platform.launched == theirs
    assert len(theirs) == 1 + BLOCKS // CHUNK + -(-BLOCKS // (DECODED_CHUNKS * CHUNK))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("global_scratch_size", 128, "memory for use inside"), ("profile_scratch_size", 8, "to be profiled")],
)
def test_what_only_triton_can_launch_is_refused(
    name: str, value: int, said: str, triton_driver: TritonDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inagg_host.torch.gpu import triton_kernels

    load, job = triton_kernels._loaded, make_job("nat8", FloatType.FLOAT32, lanes=1440)

    def needy(compiled: Any, *others: Any) -> Any:
        metadata = SimpleNamespace(**{**compiled.metadata._asdict(), name: value})
        return load(SimpleNamespace(metadata=metadata, function=compiled.function), *others)

    monkeypatch.setattr(triton_kernels, "_loaded", needy)
    with pytest.raises(RuntimeError, match=rf"_largest so that it needs .*{said}.*turn Triton's profiler"):
        triton_kernels.load(job, HERE, mean=False)
