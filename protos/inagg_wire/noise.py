"""Rounding noise: counter-based hashes, so that every run can be replayed and every target gives the same bits.

Hosts and switch use different hashes, because a host has a multiplier and a switch has CRC units. (Those software
switches of a tree that round partial sums use both.)
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from struct import pack
from typing import Final

import numpy as np
import numpy.typing as npt

from .layout import LANE_COUNT_MAX
from .noise_keys import BlockKey

Words = npt.NDArray[np.uint32]

# --- hosts ----------------------------------------------------------------------------------------------

MULTIPLIER_1: Final = 0x7FEB352D
MULTIPLIER_2: Final = 0x846CA68B
"""The multipliers of lowbias32 (Wellons, "Prospecting for hash functions", 2018)."""

WORD_SHIFT: Final = 16
"""Counters of noise word i have i above this bit, and what depends on the lane below it."""
assert LANE_COUNT_MAX < 1 << WORD_SHIFT

VECTOR: Final = 8
SHARING: Final = 4 * VECTOR
"""Lanes 32 g + 8 j + i, for j from 0 to 3, have hash 8 g + i, rotated left by j bytes."""


def hashes(key: BlockKey, counters: Words) -> Words:
    """lowbias32 of each of ``counters`` (uint32), with the key in two places.

    For any fixed ``k1`` it is a bijection of ``k0``, so each hash is exactly uniform over keys.
    """
    with np.errstate(over="ignore"):
        x = counters + np.uint32(key.k0)
        x ^= x >> np.uint32(16)
        x *= np.uint32(MULTIPLIER_1)
        x ^= x >> np.uint32(15)
        x += np.uint32(key.k1)
        x *= np.uint32(MULTIPLIER_2)
        return x ^ (x >> np.uint32(16))


def host_words(key: BlockKey, lanes: int, index: int = 0) -> Words:
    """Noise word ``index`` (0..65535) of lanes 0..``lanes``-1: uint32.

    Four lanes share a hash, with its bytes rotated; a rotation is a bijection, so each word is exactly uniform over
    keys, which is all that unbiasedness and the second moment of a lane need. And two words of a hash begin with
    different bytes of it. So the chance that both lanes go up is the product of their chances p, but for less than
    2**-8, and exactly where these are multiples of 2**-8.

    Proof. Let a lane go up if its top byte exceeds some x, or if it is x and the bits below decide so: events A and E,
    of which E has probability 2**-8 at most; B and F for the other lane. The covariance of A and B is 0. That of A and
    F is 2**-8 times that of two events given the second top byte, so at most 2**-10; likewise E and B; that of E and F
    is at most 2**-16.
    """
    lane = np.arange(lanes, dtype=np.uint32)
    x = hashes(key, lane // SHARING * VECTOR + lane % VECTOR + np.uint32(index << WORD_SHIFT))
    by = lane // VECTOR % 4 * 8
    return (x << by) | (x >> (np.uint32(32) - by & np.uint32(31)))


# --- switch ---------------------------------------------------------------------------------------------

GROUP_LANES: Final = 4
"""Lanes that share one noise word of the switch. Each lane on its own is still exactly uniform over seeds,
which is all that unbiasedness and the second moment of a lane need."""


def switch_word(seed: int, slot: int, generation: int, group: int) -> int:
    """The 32-bit noise of lanes 4 * ``group`` to 4 * ``group`` + 3: CRC-32 (IEEE 802.3, as in zlib) of
    seed, slot, generation (32 bits each) and group (16 bits), big-endian.

    A CRC maps any 32 consecutive bits of its input one to one to its value when the rest is fixed; so over
    seeds the word is exactly uniform.
    """
    return zlib.crc32(pack(">IIIH", seed, slot, generation, group))


@lru_cache
def group_table(lanes: int) -> Words:
    """Words to XOR to the word of group 0 to get that of each group: uint32, one per group of 4 lanes, read-only.

    A CRC is linear over GF(2), so the difference between two groups depends on neither seed, slot nor
    generation.
    """
    first = switch_word(0, 0, 0, 0)
    table = np.array([switch_word(0, 0, 0, g) ^ first for g in range(-(-lanes // GROUP_LANES))], np.uint32)
    table.flags.writeable = False  # all callers share it
    return table


def switch_words(seed: int, slot: int, generation: int, lanes: int) -> Words:
    """The switch's noise for lanes 0..``lanes``-1: uint32."""
    words = group_table(lanes) ^ np.uint32(switch_word(seed, slot, generation, 0))
    return np.repeat(words, GROUP_LANES)[:lanes]


def partial_words(key: BlockKey, seed: int, slot: int, generation: int, lanes: int) -> Words:
    """The noise, uint32, with which a switch of a tree rounds what it sends up: `hashes` of `switch_words`.

    CRCs of different seeds differ by a constant, so two switches' would be the same noise but for some bits, and errors
    would add up: second moments of 1.37 in place of (9/8)^2 = 1.27 were seen. The hash is no linear map, and each
    switch has a ``key`` of its own. For any key it is a bijection, so each word is exactly uniform over seeds, as
    `switch_word` is.
    """
    return hashes(key, switch_words(seed, slot, generation, lanes))
