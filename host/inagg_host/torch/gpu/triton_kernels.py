"""The kernels in Triton: each reads floats or codes once and writes the other, in the order of memory.

One program does a stretch of one block. Everything is integers of an explicit width, or float64: no float32 operation
meets a subnormal number, and none may be contracted to another result. Interfaces are those of `ops`. Kernels have no
annotations but `constexpr`, since Triton would look for what these name.

Triton compiles a kernel anew for other constants and types, for numbers that are 1 or multiples of 16, and for
addresses that are not multiples of 16 bytes. So what does not change in a job is a constant, counts and offsets are
exempt, and addresses are those of whole buffers, and of blocks of values: these begin at multiples of 8 lanes of 2
bytes or more.
"""

from __future__ import annotations

from .triton_decode import count_words, decode
from .triton_encode import encode, flag_bytes, largest

__all__ = ["count_words", "decode", "encode", "flag_bytes", "largest"]
