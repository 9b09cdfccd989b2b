"""Noise of compressors: a counter-based hash of who, when and what, so that every run can be replayed to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from inagg_wire.noise import WORD_SHIFT, Words
from inagg_wire.noise_keys import block_key

from .loops import below_of, hash_words, uniforms_of

CHUNK: Final = 1 << 16
"""Elements that share a key of `inagg_wire.noise`, which tells that many lanes apart."""

SHARED: Final = 0xFFFF_FFFF
"""The rank of noise that is the same on all ranks. No rank is as large."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names one stream of noise. The same key gives the same noise, on every machine; other keys independent noise.

    ``seed`` (32 bits) is the run's, the same on all ranks; ``rank`` the worker's; ``step`` counts the compressions of
    a tensor, ``tensor`` numbers the tensors. ``use`` tells the parts of one compressor apart: see `child`.
    """

    seed: int
    rank: int = 0
    step: int = 0
    tensor: int = 0
    use: int = 0

    def words(self, count: int, index: int = 0) -> Words:
        """Noise word ``index`` (0 to 65535) of elements 0 to ``count`` - 1: uint32, uniform on 32 bits."""
        run = block_key(self.seed, self.rank, self.step)
        stream = block_key(run.k0, run.k1, self.tensor)
        words = np.empty(count, np.uint32)
        for chunk, start in enumerate(range(0, count, CHUNK)):
            key = block_key(stream.k0, stream.k1, self.use << 32 | chunk)
            hash_words(words[start : start + CHUNK], key.k0, key.k1, index << WORD_SHIFT)
        return words

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1) of 53 bits: ``uniforms < p`` has probability p exactly for every multiple p of 2**-53."""
        result = np.empty(count)
        uniforms_of(result, self.words(count, 0), self.words(count, 1))
        return result

    def below(self, p: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """``uniforms(p.size) < p``, without the numbers themselves: true with the probabilities ``p``."""
        result = np.empty(p.size, np.bool_)
        below_of(result, self.words(p.size, 0), self.words(p.size, 1), p)
        return result

    def shared(self) -> Key:
        """The stream that all ranks have in common."""
        return replace(self, rank=SHARED)

    def child(self, number: int) -> Key:
        """An independent stream for part ``number`` (0 to 14) of a compressor that is made of parts."""
        if not 0 <= number < 15:
            raise ValueError(f"part {number}: parts are numbered from 0 to 14")
        return replace(self, use=self.use << 4 | number + 1)
