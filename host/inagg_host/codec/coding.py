"""Parameters that all blocks of a job share, as the kernels take them: of contributions, and of results."""

from __future__ import annotations

from typing import NamedTuple


class Coding(NamedTuple):
    """The kernels are compiled by the class of this, one for each family of formats."""

    lanes: int
    payload_bytes: int
    encoding: int
    half: bool
    """Values of 16 bits are float16; else bfloat16."""
    top: int
    """The highest level (natural) or largest magnitude (linear) that a code may name."""
    refined: bool
    fraction_bits: int
    """The unit's exponent is that of S less this."""
    seed: int
    worker: int


class Natural(Coding):
    """Parameters of nat8 and nat4."""


class Linear(Coding):
    """Parameters of tern and dith8."""


class Fixed(Coding):
    """Parameters of fix32."""
