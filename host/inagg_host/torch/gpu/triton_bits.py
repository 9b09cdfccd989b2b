"""Parts that kernels in Triton share: constants, and floats as bits. Kernels have no annotations but `constexpr`,
since Triton would look for what these name."""

# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from inagg_host.codec.table import Column, State

UNFUSED = {"enable_fp_fusion": False}
"""Option of a launch: no multiplication and addition become one, with one rounding; Triton's default differs between
its releases."""

COLUMNS = tl.constexpr(len(Column))
CODED, ZERO, NAN = tl.constexpr(int(State.CODED)), tl.constexpr(int(State.ZERO)), tl.constexpr(int(State.NAN))


@triton.jit
def magnitude_of(bits):
    """The bits without the sign."""
    if bits.dtype == tl.int64:
        magnitude = bits & 0x7FFFFFFFFFFFFFFF
    elif bits.dtype == tl.int16:
        magnitude = (bits & 0x7FFF).to(tl.int16)
    else:
        magnitude = bits & 0x7FFFFFFF
    return magnitude


@triton.jit
def power_of_two(exponent):
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def widen(bits, HALF: tl.constexpr):
    """Bits of float16, bfloat16 (int16) or float32 (int32) as float32."""
    if bits.dtype == tl.int32:
        wide = bits.to(tl.float32, bitcast=True)
    elif HALF:
        wide = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        wide = (bits.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return wide
