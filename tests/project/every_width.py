"""What the loops compute that are written in vectors: `digests` of it, the same on every processor. As a program it
prints them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host.codec.bits import noise_words, padded
from inagg_host.codec.decoder_streams import stream_vectors
from inagg_host.codec.drafts import draft, groups
from inagg_host.codec.finish import finish
from inagg_host.compress.loops import hash_words
from inagg_link import simd
from inagg_switch.aggregation.deferred_sum import emit_held
from inagg_switch.aggregation.state import Noise
from inagg_wire.noise import group_table

LANES = (8, 40, 64, 1440, 1448, 1464)
"""Whole vectors and all kinds of rests."""
K0, K1 = np.uint32(0x12345678), np.uint32(0x9ABCDEF0)
UNIT_FIELD = 100


def aligned(elements: int) -> npt.NDArray[np.uint32]:
    """Zeros as `inagg_link.simd.stream` wants them."""
    room = np.zeros(elements + 16, np.uint32)
    at = -room.ctypes.data % 64 // 4
    return room[at : at + elements]


def of_noise(lanes: int) -> Iterator[npt.NDArray[Any]]:
    words, hashes = np.zeros(padded(lanes), np.uint32), np.zeros(lanes, np.uint32)
    noise_words(words, lanes, K0, K1)
    hash_words(hashes, int(K0), int(K1), 5)
    yield from (words[:lanes], hashes)


def of_drafts(lanes: int) -> Iterator[npt.NDArray[Any]]:
    """Of values that are all at the unit or above, that are for two groups, and that go past the caches."""
    rng = np.random.default_rng(lanes)
    values = (rng.standard_normal(lanes) * 2.0 ** rng.integers(-20, 20, lanes)).astype(np.float32)
    for small, past in ((0, False), (2, False), (2, True)):
        values[-small * 16 :: 16] *= np.float32(2.0 ** -(127 - UNIT_FIELD + 22) if small else 1)
        out, own, below = np.zeros(lanes, np.uint8), aligned(lanes), np.full(groups(lanes), 7, np.uint8)
        room, bits = np.zeros(padded(lanes), np.uint32), values.view(np.uint32)
        most, lowest, renew = draft(out, bits, UNIT_FIELD, K0, K1, below, own, past)
        yield from (out.copy(), own.copy(), below[: -(-lanes // 32)].copy(), np.array([most, lowest, renew]))
        for by in (0, -3, 4):
            mine, its = out.copy(), below.copy()
            tie, done = finish(mine, bits, by, lowest, renew, its, UNIT_FIELD + by, K0, K1, room, own)
            yield from (mine if done else mine[:0], np.array([tie, done]))


def of_sums(lanes: int) -> Iterator[npt.NDArray[Any]]:
    """Of two workers and of four, and what is decoded of codes."""
    rng = np.random.default_rng(lanes)
    codes = (rng.integers(90, 110, 4 * lanes) | rng.integers(0, 2, 4 * lanes) << 7).astype(np.uint8)
    words = np.zeros(padded(lanes), np.uint32)
    words[: lanes // 4] = group_table(lanes)
    noise = Noise(lanes=np.repeat(words, 4)[:lanes], groups=words)
    for workers in (2, 4):
        out, kept = np.zeros(lanes, np.uint8), np.zeros(lanes, np.uint8)
        emit_held(out, kept, codes.copy(), codes[3 * lanes :], workers, 20, lanes, noise, K1)
        yield from (out, kept)
        for divisor in (1, 4, 3):
            sums = aligned(lanes)
            stream_vectors(sums, out, np.float32(2.0**-20), divisor)
            yield sums[: lanes // 16 * 16]  # what is left of the longest vectors is for other loops


def digests() -> list[str]:
    """One for each kind of loop and number of lanes."""
    return [
        f"{of.__name__} {lanes} " + hashlib.sha256(b"".join(array.tobytes() for array in of(lanes))).hexdigest()
        for of in (of_noise, of_drafts, of_sums)
        for lanes in LANES
    ]


if __name__ == "__main__":
    print(f"vectors of {simd.LANES}", *digests(), sep="\n")
