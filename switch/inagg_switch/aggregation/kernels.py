"""Numba kernels over the lanes of one packet: into the accumulators, and out of them.

Each is one pass, written so that LLVM vectorizes it over 32-bit lanes; hence the explicit 32-bit types, since
Numba would widen every operation to 64. `inagg_wire.reencode` is the reference of all of them.

``acc`` is int32, (lanes,) or longer: a sum for each lane. `absorb` and what it calls (``add_*``, ``max_*``) take in
``payload``, uint8, the packed codes of one contribution, and return how many of them name no level up to ``levels``,
and so count as zero. `emit` and what it calls (``emit_*``) pack codes of the sums into ``out``, uint8; the noise of a
lane is ``noise``, uint32, (lanes,), XOR ``word``, uint32; ``shift`` or ``low`` is log2 of the unit of a result in that
of the sums. ``lanes`` is a multiple of 8.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from inagg_link.jit import inline, jit, shift_left, shift_right
from inagg_wire.layout import Encoding

U32, I32 = np.uint32, np.int32
Sums: TypeAlias = npt.NDArray[np.int32]
Codes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint32]
Array = Any  # for what uses these: most of its arrays are of records, whose fields are attributes in compiled loops

NAT8, NAT4, TERN, DITH8, FIX32 = (int(e) for e in Encoding if e <= Encoding.FIX32)
INT4, INT8, INT16, SCALE8 = (int(e) for e in Encoding if e > Encoding.FIX32)


@inline
def put(acc: Sums, lane: int, value: Any, first: bool) -> None:
    """Start or continue the sum of one lane."""
    if first:
        acc[lane] = value
    else:
        acc[lane] = I32(acc[lane] + value)


@inline
def natural_magnitude(level: Any) -> Any:
    """2^(level - 1), or 0 of level 0, of the low five bits of a uint32. One shift by a number for each lane, as these
    are what takes long; the NOT and the AND are done for 64 bytes at a time."""
    return I32(shift_right(U32(1 << 30), U32(U32(~level) & U32(31))))


@inline
def natural(sign: Any, level: Any, levels: Any) -> Any:
    """The integer of a natural code; 0 if it names no level."""
    magnitude = natural_magnitude(level) if level <= levels else I32(0)
    mask = I32(-I32(sign))
    return I32((magnitude ^ mask) - mask)


@inline
def nat8_value(code: Any) -> Any:
    """The integer of a nat8 code, which names a level."""
    magnitude = natural_magnitude(U32(code))
    return I32(-magnitude) if code > np.uint8(127) else magnitude


@jit
def highest_level(payload: Codes, lanes: int) -> Any:
    """The highest level of natural codes of one byte: one pass, 64 lanes to an instruction."""
    highest = np.uint8(0)
    for i in range(lanes):
        highest = max(highest, np.uint8(payload[i] & np.uint8(127)))
    return highest


@jit
def add_nat8(acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    if highest_level(payload, lanes) > levels:
        return add_nat8_checked(acc, payload, lanes, first, levels)
    # All codes are valid, as always from a worker that keeps to the format: half the time of looking at each.
    if first:
        for i in range(lanes):
            acc[i] = nat8_value(payload[i])
    else:
        for i in range(lanes):
            code = I32(payload[i])
            magnitude = natural_magnitude(U32(code))
            acc[i] = I32(acc[i] - magnitude) if code > I32(127) else I32(acc[i] + magnitude)
    return 0


@jit
def add_nat8_checked(acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    invalid = U32(0)
    for i in range(lanes):
        level = U32(payload[i]) & U32(127)
        put(acc, i, natural(U32(payload[i]) >> U32(7), level, U32(levels)), first)
        invalid = U32(invalid + U32(level > U32(levels)))
    return int(invalid)


@inline
def leading_one(magnitude: Any) -> Any:
    """The position of the leading one of a uint32 below 2^31; 0 of 0.

    It is the exponent of the float32 of it. That must not be rounded up to the next power of two, so bit k - 8 is
    cleared, with k the position; of 24 bits from k on, which is what a float32 has, one is then zero.
    """
    trimmed = np.float32(I32(U32(magnitude & U32(~U32(magnitude >> U32(8))))))
    return U32(max(U32(trimmed.view(np.uint32) >> U32(23)), U32(127)) - U32(127))


@inline
def rounded_level(magnitude: Any, noise: Any, low: Any) -> Any:
    """`inagg_wire.reencode.natural_levels` of the magnitude of one sum; its levels count from 1 at 2^``low``."""
    position = max(leading_one(magnitude), low)
    below = U32(shift_left(U32(1), position) - U32(1))
    # 0 to 2: the magnitude is less than 2^(position + 1), the noise less than 2^position. 0 only if position is low.
    leading = shift_right(U32(magnitude + U32(noise & below)), position)
    return U32(U32(position - low) + leading)


@inline
def natural_code(value: Any, noise: Any, low: Any, sign_bit: Any) -> Any:
    """The natural code of one sum, with its sign."""
    level = rounded_level(U32(abs(value)), noise, low)
    return U32(level | U32(U32(I32(value) >> I32(31)) & sign_bit)) if level != U32(0) else U32(0)


@inline
def nat8_code(value: Any, noise: Any) -> Any:
    """The nat8 code of one sum, for levels from 1; a negative sum has a level."""
    level = rounded_level(U32(abs(value)), noise, U32(0))
    return np.uint8(U32(level | U32(U32(U32(value) >> U32(24)) & U32(128))))


@jit
def add_nat4(acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    for i in range(lanes // 2):
        byte = U32(payload[i])
        put(acc, 2 * i, natural(byte >> U32(7), (byte >> U32(4)) & U32(7), U32(levels)), first)
        put(acc, 2 * i + 1, natural((byte >> U32(3)) & U32(1), byte & U32(7), U32(levels)), first)
    return 0  # three bits name the seven levels and zero: every code is valid


@jit
def add_tern(acc: Sums, payload: Codes, lanes: int, first: bool, _levels: int) -> int:
    invalid = U32(0)
    for i in range(lanes // 4):
        byte = U32(payload[i])
        for j in range(4):
            code = (byte >> U32(6 - 2 * j)) & U32(3)
            # 00, 01, 11 are 0, 1, -1; 10 names no level.
            put(acc, 4 * i + j, I32(I32(code & U32(1)) - I32(code & (code << U32(1)) & U32(2))), first)
            invalid = U32(invalid + U32(code == U32(2)))
    return int(invalid)


@jit
def add_dith8(acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    invalid = U32(0)
    for i in range(lanes):
        value = I32(np.int8(payload[i]))
        beyond = abs(value) > I32(levels)
        put(acc, i, I32(0) if beyond else value, first)
        invalid = U32(invalid + U32(beyond))
    return int(invalid)


@jit
def add_int16(acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    invalid = U32(0)
    for i in range(lanes):
        value = I32(np.int16(U32(U32(payload[2 * i]) << U32(8) | U32(payload[2 * i + 1]))))
        beyond = abs(value) > I32(levels)
        put(acc, i, I32(0) if beyond else value, first)
        invalid = U32(invalid + U32(beyond))
    return int(invalid)


@inline
def swapped(w: Any) -> Any:
    """A uint32 with its bytes reversed: numbers are big-endian on the wire, and each machine that Numba knows is
    little-endian."""
    return (w >> U32(24)) | ((w >> U32(8)) & U32(0xFF00)) | ((w << U32(8)) & U32(0xFF0000)) | (w << U32(24))


@jit
def add_fix32(acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    invalid = U32(0)
    words = payload[: 4 * lanes].view(np.uint32)
    for i in range(lanes):
        value = I32(swapped(words[i]))
        beyond = value > I32(levels) or value < I32(-levels)
        put(acc, i, I32(0) if beyond else value, first)
        invalid = U32(invalid + U32(beyond))
    return int(invalid)


@jit
def max_scale8(acc: Sums, payload: Codes, lanes: int, first: bool, _levels: int) -> int:
    for i in range(lanes):
        value = I32(payload[i])
        acc[i] = value if first else max(acc[i], value)
    return 0


@jit
def absorb(encoding: int, acc: Sums, payload: Codes, lanes: int, first: bool, levels: int) -> int:
    """Take one contribution into ``acc`` (int32): start a sum if ``first``, else add (SCALE8: take the maximum).

    ``payload``: uint8, the packed codes; ``levels``: `JobFormat.levels`. Returns how many codes name no level.
    """
    if encoding == NAT8:
        return add_nat8(acc, payload, lanes, first, levels)
    if encoding == NAT4:
        return add_nat4(acc, payload, lanes, first, levels)
    if encoding == TERN:
        return add_tern(acc, payload, lanes, first, levels)
    if encoding == DITH8:
        return add_dith8(acc, payload, lanes, first, levels)
    if encoding == INT16:
        return add_int16(acc, payload, lanes, first, levels)
    if encoding == FIX32:
        return add_fix32(acc, payload, lanes, first, levels)
    return max_scale8(acc, payload, lanes, first, levels)


@jit
def emit_nat8(out: Codes, acc: Sums, lanes: int, noise: Words, word: np.uint32, _low: int) -> None:
    for i in range(lanes):
        out[i] = nat8_code(acc[i], U32(noise[i] ^ word))


@jit
def emit_nat4(out: Codes, acc: Sums, lanes: int, noise: Words, word: np.uint32, low: int) -> None:
    for i in range(lanes // 2):
        high = natural_code(acc[2 * i], U32(noise[2 * i] ^ word), U32(low), U32(8))
        rest = natural_code(acc[2 * i + 1], U32(noise[2 * i + 1] ^ word), U32(low), U32(8))
        out[i] = np.uint8((high << U32(4)) | rest)


@jit
def emit_dith8(out: Codes, acc: Sums, lanes: int, noise: Words, word: np.uint32, shift: int) -> None:
    low_bits = U32((U32(1) << U32(shift)) - U32(1))
    for i in range(lanes):
        mask = I32(acc[i] >> I32(31))
        magnitude = I32(I32(acc[i] ^ mask) - mask)
        rounded = I32((magnitude + I32(U32(noise[i] ^ word) & low_bits)) >> I32(shift))
        out[i] = np.uint8(I32(I32(rounded ^ mask) - mask))


@jit
def emit_int4(out: Codes, acc: Sums, lanes: int) -> None:
    for i in range(lanes // 2):
        out[i] = np.uint8((U32(acc[2 * i]) & U32(15)) << U32(4) | (U32(acc[2 * i + 1]) & U32(15)))


@jit
def emit_bytes(out: Codes, acc: Sums, lanes: int) -> None:
    for i in range(lanes):
        out[i] = np.uint8(acc[i])


@jit
def emit_int16(out: Codes, acc: Sums, lanes: int) -> None:
    for i in range(lanes):
        out[2 * i] = np.uint8(U32(acc[i]) >> U32(8))
        out[2 * i + 1] = np.uint8(acc[i])


@jit
def emit_fix32(out: Codes, acc: Sums, lanes: int) -> None:
    words = out[: 4 * lanes].view(np.uint32)
    for i in range(lanes):
        words[i] = swapped(U32(acc[i]))


@jit
def emit(encoding: int, out: Codes, acc: Sums, lanes: int, noise: Words, word: np.uint32, shift: int) -> None:
    """Write a result's payload to ``out`` (uint8) from complete accumulators.

    ``noise``: uint32 per lane, what to XOR to the noise ``word`` of group 0; ``shift``: `JobFormat.result_shift`.
    """
    if encoding == NAT8:
        emit_nat8(out, acc, lanes, noise, word, shift)
    elif encoding == NAT4:
        emit_nat4(out, acc, lanes, noise, word, shift)
    elif encoding == DITH8:
        emit_dith8(out, acc, lanes, noise, word, shift)
    elif encoding == INT4:
        emit_int4(out, acc, lanes)
    elif encoding in (INT8, SCALE8):
        emit_bytes(out, acc, lanes)
    elif encoding == INT16:
        emit_int16(out, acc, lanes)
    else:
        emit_fix32(out, acc, lanes)
