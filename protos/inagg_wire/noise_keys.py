"""Keys and seeds of the rounding noise (`noise`): integers alone, so that whoever hands them out needs no numpy."""

from __future__ import annotations

from typing import Final, NamedTuple

_MASK64: Final = (1 << 64) - 1

MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
GAMMA: Final = 0x9E3779B97F4A7C15
"""The multipliers of `mix64`, and what splitmix64 adds before it."""


class BlockKey(NamedTuple):
    """The noise key of one block of one worker: two 32-bit words."""

    k0: int
    k1: int


def mix64(z: int) -> int:
    """splitmix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014):
    a bijection of 64 bits."""
    z = (z ^ (z >> 30)) * MIX_1 & _MASK64
    z = (z ^ (z >> 27)) * MIX_2 & _MASK64
    return z ^ (z >> 31)


def block_key(seed: int, worker: int, block: int) -> BlockKey:
    """The key for ``block`` (64 bits) of ``worker`` (its rank) under the job's ``seed`` (32 bits).

    Seed and worker are mixed before the block number enters, so that neither two seeds nor two workers ever
    replay each other's noise shifted by some blocks.
    """
    z = mix64(((seed & 0xFFFFFFFF) << 32 | worker) + GAMMA & _MASK64)
    z = mix64(z ^ (block & _MASK64))
    return BlockKey(z & 0xFFFFFFFF, z >> 32)


_POLYNOMIAL: Final = 0xEDB88320
"""Polynomial of CRC-32, its bits in the order in which they enter."""


def seed_for_lease(seed: int, base: int) -> int:
    """The seed with which slot ``base`` + i has the noise (`noise.switch_word`) that slot i has with ``seed``, for
    every generation and group: so what a job's noise is does not depend on where its lease lies.

    ``base`` is that of a lease, a multiple of its size, which is a power of two; so ``base`` + i is ``base`` XOR i.

    Proof. A CRC is affine over GF(2): what XORs ``base`` to the slot XORs L(``base``) to the CRC, whatever the rest of
    the input is; what XORs x to the seed XORs M(x). Both words go through the same register, the seed's 32 bits before
    the slot's. So M(x) = L(S(x)), where S shifts 32 zero bits into the register after x; and x = S**-1(``base``)
    cancels the base, for M(x) XOR L(``base``) = 0. S has an inverse since the polynomial has a constant term: of a
    register after a shift, the top bit tells whether the polynomial was XORed, and so what the register was before.
    Words enter byte by byte, the first byte first and its low bit first: hence the bytes in the other order.
    """
    register = int.from_bytes(base.to_bytes(4, "big"), "little")
    for _ in range(32):
        register = (register ^ _POLYNOMIAL) << 1 | 1 if register >> 31 else register << 1
    return seed ^ int.from_bytes(register.to_bytes(4, "little"), "big")
