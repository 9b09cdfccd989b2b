"""A switch that has a parent: partial sums up, results down. See `model` for the same in plain Python.

A slot whose sum is complete keeps each part of it until that part's result has come; for good, if the parent only
acknowledges it, since the result goes to a rank elsewhere. The switch has no timers: a child that repeats its
contribution meanwhile makes it send up again what still lacks an answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline, jit
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.noise import MULTIPLIER_1, MULTIPLIER_2

from .kernels import NAT4, U32, Array, emit
from .noise_word import group_0_word
from .state import Noise
from .validation import (
    ACK,
    CONTRIBUTION,
    DUPLICATE,
    FORMAT_AT,
    GENERATION_AT,
    KIND_AT,
    LANES_AT,
    OP_AT,
    OUTSIDE_WINDOW,
    SLOT_AT,
    STALE,
    WRONG_OP,
    put_u16,
    put_u32,
    u32,
)

ACC_BYTES = 4
"""Bytes of a lane of ``acc``."""


@inline
def is_asked_for(slot: int, bit: int, slots: Any) -> bool:
    """Whether a child that repeats its contribution makes the sum go up again: the first that does since it went up
    last, and whoever does so twice. So a round of time-outs of all children causes one."""
    s = slots.table[slot]
    if s.asked == 0 or s.asked & bit:
        s.asked = bit
        return True
    s.asked |= bit
    return False


@inline
def slot_below(d: Array, row: int, jobs: Any) -> Any:
    """The slot here of a result ``d`` of the parent's."""
    return jobs.table[row].base + (u32(d, SLOT_AT) - jobs.table[row].up_base >> jobs.table[row].up_bits)


@inline
def take_result(d: Array, row: int, jobs: Any, slots: Any) -> int:
    """Take one part of a result, or its acknowledgement, which fits the binding. A `Reason`, or 0."""
    op, slot, generation = np.int64(d[OP_AT]), slot_below(d, row, jobs), u32(d, GENERATION_AT)
    s = slots.table[slot]
    if generation < s.tag:
        return STALE
    if generation > s.tag or s.seen != jobs.table[row].full:
        return OUTSIDE_WINDOW
    if op != s.op:
        return WRONG_OP
    part = u32(d, SLOT_AT) & ((1 << jobs.table[row].up_bits) - 1)
    bit = 1 << part
    if s.here & bit != 0 and (d[KIND_AT] == ACK or s.bare & bit == 0):
        return DUPLICATE
    s.here |= bit
    if d[KIND_AT] == ACK:
        s.bare |= bit
        return 0
    s.bare &= ~bit
    # In place of the part of the sum that it answers, which is as large or larger.
    to = slots.acc[s.at :].view(np.uint8)[part * jobs.table[row].up_lanes[op] * ACC_BYTES :]
    for i in range(len(d) - HEADER_BYTES):
        to[i] = d[HEADER_BYTES + i]
    return 0


@inline
def gather(payload: Array, slot: int, op: Any, row: int, jobs: Any, slots: Any) -> None:
    """The parts of a result that are in ``acc``, back to back."""
    codes, size = slots.acc[slots.table[slot].at :].view(np.uint8), jobs.table[row].part_bytes[op]
    for part in range(1 << jobs.table[row].up_bits):
        start = part * jobs.table[row].up_lanes[op] * ACC_BYTES
        for i in range(size):
            payload[part * size + i] = codes[start + i]


@inline
def write_partial(to: Array, d: Array, part: int, row: int, jobs: Any, slots: Any, noise: Noise) -> None:
    """Part ``part`` of the sum that contribution ``d`` has completed, or asks for, as a contribution to the parent."""
    op, slot = np.int64(d[OP_AT]), u32(d, SLOT_AT)
    for i in range(HEADER_BYTES):
        to[i] = d[i]
    to[KIND_AT] = CONTRIBUTION
    to[FORMAT_AT] = jobs.table[row].up_encoding[op]
    lanes = jobs.table[row].up_lanes[op]
    put_u16(to, LANES_AT, lanes)
    put_u32(to, SLOT_AT, jobs.table[row].up_base + (slot - jobs.table[row].base << jobs.table[row].up_bits) + part)
    sums, words = slots.acc[slots.table[slot].at :][part * lanes :], noise.lanes
    if jobs.table[row].up_encoding[op] <= NAT4:  # else the sum is exact
        bits = jobs.table[row].part_bits
        above = ((slot & ((1 << bits) - 1)) << jobs.table[row].up_bits) + part
        word = np.uint32(group_0_word(jobs.table[row].seed, slot >> bits, u32(d, GENERATION_AT)))
        words = slots.sums.view(np.uint32)
        mix(words, noise.lanes[above * lanes :], word, lanes, jobs.table[row].key_0, jobs.table[row].key_1)
    shift = jobs.table[row].up_shift[op]
    emit(jobs.table[row].up_encoding[op], to[HEADER_BYTES:], sums, lanes, words, np.uint32(0), shift)


@jit
def mix(to: Array, noise: Array, word: Any, lanes: int, key_0: int, key_1: int) -> None:
    """`inagg_wire.noise.partial_words`, where ``word`` is that of group 0."""
    k0, k1 = U32(key_0), U32(key_1)
    for i in range(lanes):
        x = U32(U32(noise[i] ^ word) + k0)
        x = U32(U32(x ^ U32(x >> U32(16))) * U32(MULTIPLIER_1))
        x = U32(U32(U32(x ^ U32(x >> U32(15))) + k1) * U32(MULTIPLIER_2))
        to[i] = U32(x ^ U32(x >> U32(16)))
