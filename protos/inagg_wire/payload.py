"""Codes to payload bytes and back: how lanes are packed.

A *code* is the unsigned integer that a lane's bits hold. Narrow lanes are packed first lane in the most
significant bits of a byte; wide ones are big-endian.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .layout import LANE_BITS, Encoding

Codes = npt.NDArray[np.uint32]


def pack(encoding: Encoding, codes: Codes) -> bytes:
    """The payload of ``codes`` (1-D, a multiple of 8 of them, each below 2**lane bits)."""
    bits = LANE_BITS[encoding]
    if bits >= 8:
        return codes.astype(f">u{bits // 8}").tobytes()
    per_byte = 8 // bits
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint32)
    packed: npt.NDArray[np.uint8] = (codes.reshape(-1, per_byte) << shifts).sum(axis=1).astype(np.uint8)
    return packed.tobytes()


def unpack(encoding: Encoding, payload: bytes | memoryview) -> Codes:
    """The codes in ``payload``: uint32, one per lane."""
    bits = LANE_BITS[encoding]
    if bits >= 8:
        return np.frombuffer(payload, f">u{bits // 8}").astype(np.uint32)
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint32)
    data = np.frombuffer(payload, np.uint8).astype(np.uint32)
    return ((data[:, None] >> shifts) & np.uint32((1 << bits) - 1)).reshape(-1)
