"""The Triton kernels, compiled for GPUs: that needs Triton, which comes with the CUDA builds of torch, and no GPU.

What is compiled is what a launch would be: the arguments are those that `encode`, `decode` and `largest` give. With
`--junitxml FILE -o junit_family=xunit1` the file says how many registers a thread of each takes.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.host.codec.reference import CONTRIBUTIONS, make_job

from inagg_host.codec import Job
from inagg_host.codec.staged import TIES
from inagg_host.codec.table import Column
from inagg_host.torch.gpu.floats import DTYPES, FLOATS
from inagg_wire.scale import FloatType

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: it comes with the CUDA builds of torch; or run: pip install triton",
)

LANES = 1440
ARCHITECTURES = (90, 100)
"""Compute capabilities, times ten: H100 and H200, and B200."""
REGISTERS_MOST = 128
"""A thread of four warps may have 255; with 128, four such programs run on a multiprocessor (65,536 registers)."""
POINTERS = {
    torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip

every_format = pytest.mark.parametrize("name", CONTRIBUTIONS)
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())
everywhere = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: f"sm_{a}")


class Launch:
    """Stands in for a kernel: keeps what it was to be launched with."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.constants: dict[str, Any] = {}

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.arguments, self.constants = arguments, constants

        return launch


@contextmanager
def launched(kernels: Any, name: str) -> Iterator[Launch]:
    module, launch = home(kernels, name), Launch()
    kernel = getattr(module, name)
    setattr(module, name, launch)
    try:
        yield launch
    finally:
        setattr(module, name, kernel)


def home(kernels: Any, name: str) -> Any:
    """The module of a kernel, which is that of what launches it."""
    return sys.modules[getattr(kernels, name.removeprefix("_")).__module__]


def compiled(kernel: Any, launch: Launch, architecture: int) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, where spilled ones go, as the machine code says."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [parameter.name for parameter in kernel.params]
    values = dict(zip(names, launch.arguments, strict=False)) | launch.constants
    signature, constants = {}, {}
    for at, name in enumerate(names):
        if name in launch.constants:
            signature[name], constants[(at,)] = "constexpr", values[name]
        else:
            signature[name] = POINTERS[values[name].dtype] if isinstance(values[name], torch.Tensor) else "i32"
    options = {name: value for name, value in launch.constants.items() if name not in names}
    source = ASTSource(kernel, signature, constants)
    return _resources(triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options).asm["cubin"])


def _resources(binary: bytes) -> tuple[int, int]:
    """What cuobjdump, which is part of Triton, tells of machine code."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


@pytest.fixture(scope="module")
def kernels() -> Any:
    return importlib.import_module("inagg_host.torch.gpu.triton_kernels")


def check(
    kernels: Any, name: str, call: Callable[[], object], architecture: int, note: Callable[[str, object], None]
) -> None:
    with launched(kernels, name) as launch:
        call()
    registers, spilled = compiled(getattr(home(kernels, name), name), launch, architecture)
    note("registers", registers)
    assert spilled == 0
    assert registers <= REGISTERS_MOST


def table_of(blocks: int) -> torch.Tensor:
    return torch.zeros(blocks, len(Column), dtype=torch.int32)


def job_of(name: str, float_type: FloatType) -> Job:
    return make_job(name, float_type, 4, lanes=LANES)


@everywhere
@every_type
@every_format
def test_encoders(
    kernels: Any, name: str, float_type: FloatType, architecture: int, record_property: Callable[[str, object], None]
) -> None:
    job, values = job_of(name, float_type), torch.zeros(2 * LANES, dtype=DTYPES[float_type])
    payloads = torch.zeros(2 * job.for_encode.payload_bytes, dtype=torch.uint8)
    flags = torch.zeros(2 * kernels.flag_bytes(job), dtype=torch.uint8)
    ties, tied = torch.zeros(2 * TIES, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    check(
        kernels, "_encode",
        lambda: kernels.encode(job, values, table_of(2), payloads, flags, ties, tied, 0, 2), architecture,
        record_property,
    )  # fmt: skip


@everywhere
@every_type
@every_format
@pytest.mark.parametrize("divisor", [1, 4], ids=["sum", "mean"])
def test_decoders(
    kernels: Any,
    name: str,
    float_type: FloatType,
    divisor: int,
    architecture: int,
    record_property: Callable[[str, object], None],
) -> None:
    job, values = job_of(name, float_type), torch.zeros(2 * LANES, dtype=DTYPES[float_type])
    payloads = torch.zeros(2 * job.for_decode.payload_bytes, dtype=torch.uint8)
    counts = torch.zeros(2 * kernels.count_words(job), dtype=torch.int32)
    check(
        kernels, "_decode", lambda: kernels.decode(job, payloads, table_of(2), values, counts, 0, 2, divisor),
        architecture, record_property,
    )  # fmt: skip


@everywhere
@every_type
@pytest.mark.parametrize("lanes", [LANES, 13_072])
def test_the_largest_of_a_block(
    kernels: Any, float_type: FloatType, lanes: int, architecture: int, record_property: Callable[[str, object], None]
) -> None:
    values = torch.zeros(2 * lanes, dtype=DTYPES[float_type])
    out = torch.zeros(2, dtype=FLOATS[values.element_size()])
    check(kernels, "_largest", lambda: kernels.largest(values, lanes, out), architecture, record_property)


@pytest.mark.parametrize("name", ["_largest", "_encode", "_decode"])
def test_no_kernel_is_compiled_anew_for_other_numbers(kernels: Any, name: str) -> None:
    """What is not a constant of the job is exempt from specialization: an integer that is 1, or a multiple of 16."""
    parameters = getattr(home(kernels, name), name).params
    numbers = [p for p in parameters if p.name in ("elements", "row_at", "first", "divisor")]
    assert all(p.do_not_specialize for p in numbers)
    pointers = {"bits", "out", "values", "table", "payloads", "flags", "ties", "counted", "counts"}
    assert all(p.is_constexpr or p in numbers or p.name in pointers for p in parameters)
