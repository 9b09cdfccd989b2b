"""Compressors of vectors: the papers' own, any two of them composed, error feedback around any, and one's own.

See README.md beside this file.
"""

from .base import Aggregation, Bound, Compressor, Contraction, Floats, NoBound, State, Unbiased
from .compose import Composed
from .dithering import Dithering, NaturalDithering
from .exchange import Exchange
from .feedback import ErrorFeedback
from .key import Key
from .memory import Memories, Memory
from .natural import Natural
from .registry import names, parse, register
from .sparse import BlockTopK, RandK, Sparsifier, TopK, UltraSparse
from .terngrad import TernGrad
from .theory import NoiseTerms, noise_terms

__all__ = [
    "Aggregation",
    "BlockTopK",
    "Bound",
    "Composed",
    "Compressor",
    "Contraction",
    "Dithering",
    "ErrorFeedback",
    "Exchange",
    "Floats",
    "Key",
    "Memories",
    "Memory",
    "Natural",
    "NaturalDithering",
    "NoBound",
    "NoiseTerms",
    "RandK",
    "Sparsifier",
    "State",
    "TernGrad",
    "TopK",
    "UltraSparse",
    "Unbiased",
    "names",
    "noise_terms",
    "parse",
    "register",
]
