"""Small integers to bytes and back, ``width`` bits each, the most significant bit first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import expect
from .loops import pack_bits, unpack_bits

Codes = npt.NDArray[np.uint32]


def packed_bytes(count: int, width: int) -> int:
    """Bytes that ``count`` codes of ``width`` bits take."""
    return -(-count * width // 8)


def pack(codes: Codes, width: int) -> bytes:
    """``codes`` (uint32, each below 2**width) as bytes; the last is filled up with zeros."""
    out = np.empty(packed_bytes(codes.size, width), np.uint8)
    pack_bits(out, codes, width)
    return out.tobytes()


def unpack(data: bytes, count: int, width: int) -> Codes:
    """The ``count`` codes that ``data`` holds. Raises ValueError if it has another length."""
    expect(data, packed_bytes(count, width))
    codes = np.empty(count, np.uint32)
    unpack_bits(codes, np.frombuffer(data, np.uint8), width)
    return codes
