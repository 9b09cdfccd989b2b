"""The switch's rounding noise, compiled: `inagg_wire.noise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import jit

CRC_TABLES = np.zeros((4, 256), np.uint32)
"""Row k: what a byte does to the CRC-32 with k more bytes after it, so that four bytes take one step, not four, each of
which would wait for the one before ("slicing by four": Kounavis and Berry, 2005)."""
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0xEDB88320 if _crc & 1 else 0)
    CRC_TABLES[0, _byte] = _crc
for _row in range(1, 4):
    CRC_TABLES[_row] = CRC_TABLES[0, CRC_TABLES[_row - 1] & 255] ^ CRC_TABLES[_row - 1] >> 8


@jit
def group_0_word(seed: int, slot: int, generation: int) -> Any:
    """`inagg_wire.noise.switch_word` of group 0."""
    crc = np.uint32(0xFFFFFFFF)
    for word in (seed, slot, generation):
        first, second = np.uint32(word >> 24) ^ crc, np.uint32(word >> 16) ^ crc >> np.uint32(8)
        third, last = np.uint32(word >> 8) ^ crc >> np.uint32(16), np.uint32(word) ^ crc >> np.uint32(24)
        crc = CRC_TABLES[3, first & np.uint32(255)] ^ CRC_TABLES[2, second & np.uint32(255)]
        crc ^= CRC_TABLES[1, third & np.uint32(255)] ^ CRC_TABLES[0, last & np.uint32(255)]
    # The group, two bytes of 0.
    crc = (
        CRC_TABLES[1, crc & np.uint32(255)] ^ CRC_TABLES[0, crc >> np.uint32(8) & np.uint32(255)] ^ crc >> np.uint32(16)
    )
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))
