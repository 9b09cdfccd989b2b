"""Small integers to bytes and back, ``width`` bits each, the most significant bit first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import expect

Codes = npt.NDArray[np.uint32]


def packed_bytes(count: int, width: int) -> int:
    """Bytes that ``count`` codes of ``width`` bits take."""
    return -(-count * width // 8)


def pack(codes: Codes, width: int) -> bytes:
    """``codes`` (uint32, each below 2**width) as bytes; the last is filled up with zeros."""
    octets = codes.astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(octets, axis=1)[:, 32 - width :]).tobytes()


def unpack(data: bytes, count: int, width: int) -> Codes:
    """The ``count`` codes that ``data`` holds. Raises ValueError if it has another length."""
    expect(data, packed_bytes(count, width))
    bits = np.unpackbits(np.frombuffer(data, np.uint8))[: count * width].reshape(count, width)
    wide = np.zeros((count, 32), np.uint8)
    wide[:, 32 - width :] = bits
    return np.packbits(wide, axis=1).view(">u4").reshape(count).astype(np.uint32)
