"""Kernels over natural codes that a slot holds as they came, until the last worker's have come.

To keep them, and to add them in the pass that writes the result, moves a quarter of the bytes that sums would. The last
contribution is read where it was received.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_wire.compiled import jit

from .kernels import I32, U32, Array, nat8_code, nat8_value

HELD_WORKERS = 4
"""So many workers' codes of a byte fit into a row of accumulators, four bytes a lane. They stand there in the order in
which they came, each worker's after another's."""


@jit
def hold_nat8(held: Array, payload: Array, lanes: int, levels: int) -> int:
    """Keep a contribution's codes in ``held`` (uint8); those that name no level become zero. Returns how many."""
    highest = np.uint8(0)
    for i in range(lanes):
        code = np.uint8(payload[i])
        held[i] = code
        highest = max(highest, np.uint8(code & np.uint8(127)))
    if highest <= levels:
        return 0
    invalid = 0
    for i in range(lanes):
        if held[i] & np.uint8(127) > levels:
            held[i] = 0
            invalid += 1
    return invalid


@jit
def unpack_nat4(codes: Array, payload: Array, lanes: int) -> None:
    """nat4 codes, two a byte, as nat8 codes (uint8): to be added at twice the speed of `add_nat4`."""
    for i in range(lanes // 2):
        high, low = np.uint8(payload[i] >> np.uint8(4)), payload[i]
        codes[2 * i] = np.uint8(((high & np.uint8(8)) << np.uint8(4)) | (high & np.uint8(7)))
        codes[2 * i + 1] = np.uint8(((low & np.uint8(8)) << np.uint8(4)) | (low & np.uint8(7)))


@jit
def hold_nat4(held: Array, payload: Array, lanes: int) -> int:
    """Keep a contribution's codes, two a byte, in ``held`` (uint8): every code is valid. Returns 0."""
    for i in range(lanes // 2):
        held[i] = payload[i]
    return 0


@jit
def emit_held(
    out: Array, kept: Array, held: Array, last: Array, workers: int, lanes: int, noise: Array, word: Any
) -> None:
    """The result (nat8) of the codes of ``workers``: all but one are in ``held``, then ``last``. Noise as in `emit`.

    It goes to ``out`` and to ``kept``, which is in no cache: a copy would wait for it, this pass computes meanwhile.
    """
    a, b, c = held[:lanes], held[lanes:], held[2 * lanes :]
    if workers == 1:
        for i in range(lanes):
            code = nat8_code(nat8_value(last[i]), U32(noise[i] ^ word))
            out[i] = code
            kept[i] = code
    elif workers == 2:
        for i in range(lanes):
            code = nat8_code(I32(nat8_value(a[i]) + nat8_value(last[i])), U32(noise[i] ^ word))
            out[i] = code
            kept[i] = code
    elif workers == 3:
        for i in range(lanes):
            value = I32(I32(nat8_value(a[i]) + nat8_value(b[i])) + nat8_value(last[i]))
            code = nat8_code(value, U32(noise[i] ^ word))
            out[i] = code
            kept[i] = code
    else:
        for i in range(lanes):
            first, second = I32(nat8_value(a[i]) + nat8_value(b[i])), I32(nat8_value(c[i]) + nat8_value(last[i]))
            code = nat8_code(I32(first + second), U32(noise[i] ^ word))
            out[i] = code
            kept[i] = code
