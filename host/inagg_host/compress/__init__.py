"""Compressors of vectors: the papers' own, any two of them composed, error feedback around any, and one's own.

See README.md beside this file.
"""

from .base import Aggregation, Bound, Compressor, Contraction, Floats, NoBound, State, Unbiased
from .dithering import Dithering, NaturalDithering
from .key import Key
from .natural import Natural
from .sparse import RandK, Sparsifier, TopK, UltraSparse

__all__ = [
    "Aggregation",
    "Bound",
    "Compressor",
    "Contraction",
    "Dithering",
    "Floats",
    "Key",
    "Natural",
    "NaturalDithering",
    "NoBound",
    "RandK",
    "Sparsifier",
    "State",
    "TopK",
    "UltraSparse",
    "Unbiased",
]
