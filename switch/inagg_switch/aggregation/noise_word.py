"""The switch's rounding noise, compiled: `inagg_wire.noise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import jit

CRC_TABLE = np.zeros(256, np.uint32)
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0xEDB88320 if _crc & 1 else 0)
    CRC_TABLE[_byte] = _crc


@jit
def group_0_word(seed: int, slot: int, generation: int) -> Any:
    """`inagg_wire.noise.switch_word` of group 0."""
    crc = np.uint32(0xFFFFFFFF)
    for word in (seed, slot, generation):
        for i in range(4):
            crc = CRC_TABLE[(crc ^ np.uint32(word >> (24 - 8 * i))) & np.uint32(255)] ^ (crc >> np.uint32(8))
    for _ in range(2):  # the group, 0
        crc = CRC_TABLE[crc & np.uint32(255)] ^ (crc >> np.uint32(8))
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))
