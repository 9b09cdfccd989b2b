"""All that a device does for an operation, launched by compiled code: from Python a kernel takes 40 us and more, a copy
15, and an operation may have dozens.

The functions of the driver are called by address, so that what is launched here can be noted, or done by another
device, as tests do. Signatures are those of the CUDA Driver API: "Stream Memory Operations", "Execution Control",
"Memory Management".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import numpy as np
from numba import types
from numba.extending import register_jitable

from inagg_link.jit import jit

from .calls import INT, WORD, array_at, function_at
from .table import COLUMNS

BASE_BLOCKS = 16
"""Kernels are told of blocks from the last multiple of this on: memory before it is a multiple of 16 bytes, whatever a
block has, as kernels are compiled for; and what is after it is counted in 32 bits."""

DECODED_CHUNKS = 4
"""Chunks that are decoded in a launch, of an operation that has many: the network takes longer for a chunk."""

WORDS: Final = 16
"""Room for the arguments of a kernel, a word of 8 bytes for each: an int32 is the first half of its word, and kernels
may have some more arguments, which are 0."""


class Calls(NamedTuple):
    """Addresses of the functions that have these `NAMES`."""

    wait: int
    write: int
    launch: int
    copy: int


NAMES: Final = ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuLaunchKernel", "cuMemcpyAsync")


def _words(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names])


LARGEST: Final = _words("bits", "out", "elements")
ENCODE: Final = _words("values", "table", "payloads", "flags", "ties", "counted", "elements", "row_at", "first")
DECODE: Final = _words("payloads", "table", "out", "counts", "elements", "row_at", "divisor")
"""Arguments of the kernels, in their order: see `inagg_host.torch.gpu.triton_kernels`."""

KERNEL: Final = _words("function", "programs", "threads", "shared", "stream", "arguments", "pointers")
"""A kernel: what the driver calls it, how many programs a block has, how many threads a program has, and how many bytes
of memory these share; the stream that it is launched on; addresses of room for its arguments (`WORDS`), and of the
addresses of these."""

LAUNCH: Final = _words(
    # Functions of the driver: see `Calls`. The address of three `KERNEL`: they find largest magnitudes,
    # encode and decode.
    "wait_value", "write_value", "launch_kernel", "kernels",
    # Addresses of the values, of the sums, of the parts of the `Board`, and of how many ties there were.
    "values", "out", "measured", "agreed", "coded", "complete", "ties", "magnitudes", "sending", "receiving", "codes",
    "results", "flags", "invalid", "counted",
    # How many values, and sums; bytes of one; lanes of a block; bytes of its payloads, flags and counts.
    "elements", "sums", "width", "lanes", "code_bytes", "result_bytes", "flag_bytes", "count_bytes",
    # How many blocks there are, in a launch that finds largest magnitudes (of which `BASE_BLOCKS` are a part), and in a
    # chunk; the blocks whose sums this rank gets; what they are divided by.
    "blocks", "measured_at_once", "chunk", "own_start", "own_end", "divisor",
)  # fmt: skip
"""Words of the record from which an operation's kernels are launched."""

_ROW: Final = COLUMNS * 4
_launch_at, _kernel_at, _largest_at, _encode_at, _decode_at = (
    array_at(dtype) for dtype in (LAUNCH, KERNEL, LARGEST, ENCODE, DECODE)
)


# CUresult f(stream, address, value, flags), f(function, x, y, z, threads, 1, 1, shared, stream, pointers, extra) and
# f(to, source, size, stream).
_word_call = function_at(INT, WORD, WORD, INT, INT)
_kernel_call = function_at(INT, WORD, *[INT] * 7, *[WORD] * 3)
_copy_call = function_at(INT, *[WORD] * 4)


@register_jitable
def _failed(name: int, code: int) -> int:
    """Result of `launch` where a call failed."""
    return (code << 2) | name if code != 0 else 0


@register_jitable
def _wait(o: Any, k: Any, address: int) -> int:
    """Have whatever comes next in the kernel's stream wait for a word."""
    return _failed(0, _word_call(o.wait_value, k.stream, address, 1, 0))


@register_jitable
def _write(o: Any, k: Any, address: int, value: int) -> int:
    """Its stream writes a word, when all that is there is done."""
    return _failed(1, _word_call(o.write_value, k.stream, address, value, 0))


@register_jitable
def _start(o: Any, k: Any, blocks: int) -> int:
    """Launch the kernel, with the arguments that are there, for so many blocks."""
    return _failed(
        2,
        _kernel_call(
            o.launch_kernel, k.function, blocks, k.programs, 1, k.threads, 1, 1, k.shared, k.stream, k.pointers, 0
        ),
    )


@register_jitable
def _measure(o: Any) -> int:
    k = _kernel_at(o.kernels, 3)[0]
    a, size = _largest_at(k.arguments, 1)[0], o.lanes * o.width
    for first in range(0, o.blocks, o.measured_at_once):
        end = min(first + o.measured_at_once, o.blocks)
        a.bits, a.out = o.values + first * size, o.magnitudes + first * o.width
        a.elements = min(end * o.lanes, o.elements) - first * o.lanes
        failed = _start(o, k, end - first)
        failed = failed if failed != 0 else _write(o, k, o.measured, end)
        if failed != 0:
            return failed
    return 0


@register_jitable
def _encode(o: Any) -> int:
    k = _kernel_at(o.kernels, 3)[1]
    a, size = _encode_at(k.arguments, 1)[0], o.lanes * o.width
    a.ties, a.counted = o.ties, o.counted
    for first in range(0, o.blocks, o.chunk):
        end, base, word = min(first + o.chunk, o.blocks), first // BASE_BLOCKS * BASE_BLOCKS, first // o.chunk * 8
        a.values, a.table = o.values + first * size, o.sending + base * _ROW
        a.payloads, a.flags = o.codes + base * o.code_bytes, o.flags + base * o.flag_bytes
        a.elements = min(end * o.lanes, o.elements) - first * o.lanes
        a.row_at, a.first = first - base, first
        failed = _wait(o, k, o.agreed + word)
        failed = failed if failed != 0 else _start(o, k, end - first)
        failed = failed if failed != 0 else _write(o, k, o.coded + word, 1)
        if failed != 0:
            return failed
    return 0


@register_jitable
def _decode(o: Any) -> int:
    k = _kernel_at(o.kernels, 3)[2]
    a, size = _decode_at(k.arguments, 1)[0], o.lanes * o.width
    a.divisor = o.divisor
    step = o.chunk * (DECODED_CHUNKS if o.blocks > 2 * DECODED_CHUNKS * o.chunk else 1)
    for begin in range(0, o.blocks, step):
        first, end = max(begin, o.own_start), min(begin + step, o.blocks, o.own_end)
        if first >= end:
            continue
        base, to = first // BASE_BLOCKS * BASE_BLOCKS, first - o.own_start
        a.payloads, a.table = o.results + base * o.result_bytes, o.receiving + base * _ROW
        a.out, a.counts = o.out + to * size, o.invalid + base * o.count_bytes
        a.elements = min((end - o.own_start) * o.lanes, o.sums) - to * o.lanes
        a.row_at = first - base
        failed = 0
        for chunk in range(first // o.chunk, (end - 1) // o.chunk + 1):
            failed = failed if failed != 0 else _wait(o, k, o.complete + 8 * chunk)
        failed = failed if failed != 0 else _start(o, k, end - first)
        if failed != 0:
            return failed
    return 0


@jit
def launch(operation: int) -> int:
    """Launch all that the `LAUNCH` at an address says. Returns 0, or of the first call that failed the CUresult, times
    four, and which of `NAMES` it was."""
    o = _launch_at(operation, 1)[0]
    failed = _measure(o)
    if failed == 0:
        failed = _encode(o)
    if failed == 0:
        failed = _decode(o)
    return failed


@jit
def copy_and_tell(calls: Calls, stream: int, to: int, source: int, size: int, word: int) -> int:
    """Copy ``size`` bytes, and then write a word, in a stream; addresses. ``calls``: `Calls`. Returns as `launch`."""
    _, write, _, copy = calls
    failed = _failed(3, _copy_call(copy, to, source, size, stream))
    return failed if failed != 0 else _failed(1, _word_call(write, stream, word, 1, 0))


@jit
def await_and_copy(calls: Calls, stream: int, to: int, source: int, size: int, word: int) -> int:
    """Wait for the word, then copy as `copy_and_tell`."""
    wait, _, _, copy = calls
    failed = _failed(0, _word_call(wait, stream, word, 1, 0))
    return failed if failed != 0 else _failed(3, _copy_call(copy, to, source, size, stream))


def compile_launch() -> None:
    """Compile all of this module, or load it, so that no operation has to wait for it."""
    numba_types, dispatcher = cast("Any", types), cast("Any", launch)
    dispatcher.compile((types.int64,))
    calls = numba_types.NamedUniTuple(types.int64, len(Calls._fields), Calls)
    for dispatcher in (cast("Any", copy_and_tell), cast("Any", await_and_copy)):
        dispatcher.compile((calls, *[types.int64] * 5))
