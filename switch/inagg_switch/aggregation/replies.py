"""Answers of the switch to a datagram: the result of its slot, an acknowledgement, or a notice."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline
from inagg_wire.layout import HEADER_BYTES

from .deferred_sum import HELD_WORKERS, emit_held, hold_nat8, range_of_levels, unpack_nat4
from .kernels import NAT8, Array, add_nat8, emit
from .noise_word import group_0_word
from .state import Noise
from .uplink import gather, slot_below
from .validation import (
    ACK,
    FORMAT_AT,
    GENERATION_AT,
    KIND_AT,
    LANES_AT,
    NOTICE,
    OP_AT,
    OWNER_AT,
    RESULT,
    SLOT_AT,
    put_u16,
    put_u32,
    u32,
)


@inline
def copy(to: Array, data: Array, size: int) -> None:
    for i in range(size):
        to[i] = data[i]


@inline
def write_result(to: Array, d: Array, row: int, jobs: Any, slots: Any, counts: Any, noise: Noise) -> None:
    """Write to ``to`` the result of the slot that ``d`` names, a contribution or the last part of a result of the
    parent's: what is kept of it, or made from what the slot holds, and kept if there is room."""
    op, slot = np.int64(d[OP_AT]), u32(d, SLOT_AT)
    if d[KIND_AT] == RESULT:
        slot = slot_below(d, row, jobs)
    write_result_header(to, d, slot, row, jobs)
    payload, size = to[HEADER_BYTES:], jobs.table[row].result_bytes[op] - HEADER_BYTES
    kept = slots.results[jobs.table[row].kept_at + slot * jobs.table[row].kept_bytes :]
    if slots.table[slot].at < 0:
        copy(payload, kept, size)
        return
    make_payload(payload, kept, d, slot, row, jobs, slots, counts, noise)
    if size <= jobs.table[row].kept_bytes:
        if jobs.table[row].held[op] != NAT8:  # else `emit_held` has kept it
            copy(kept, payload, size)
        give_row_back(slot, row, jobs, slots)


@inline
def write_result_header(to: Array, d: Array, slot: int, row: int, jobs: Any) -> None:
    """Write the header of the result of ``slot``, which ``d`` asks for or completes."""
    op = np.int64(d[OP_AT])
    copy(to, d, HEADER_BYTES)
    to[KIND_AT] = RESULT
    to[FORMAT_AT] = jobs.table[row].result_encoding[op]
    put_u16(to, LANES_AT, jobs.table[row].lanes[op])
    put_u32(to, SLOT_AT, slot)


@inline
def make_payload(
    payload: Array, kept: Array, d: Array, slot: int, row: int, jobs: Any, slots: Any, counts: Any, noise: Noise
) -> None:
    """Make the payload of a result from the row of ``slot`` in ``acc``: the parts that the parent has sent, codes as
    they came (``held``; ``d`` is then the last contribution, which is held nowhere), or sums."""
    op, generation, at = np.int64(d[OP_AT]), u32(d, GENERATION_AT), slots.table[slot].at
    encoding, lanes, shift = jobs.table[row].result_encoding[op], jobs.table[row].lanes[op], jobs.table[row].shift[op]
    held, levels, children = jobs.table[row].held[op], jobs.table[row].levels[op], jobs.table[row].children
    # A block that comes in parts has the noise of the slot and the lanes that it has where it comes in one.
    bits = jobs.table[row].part_bits
    word = np.uint32(group_0_word(jobs.table[row].seed, slot >> bits, generation))
    words = noise.lanes[(slot & ((1 << bits) - 1)) * lanes :]
    if jobs.table[row].up_full != 0:
        gather(payload, slot, op, row, jobs, slots)
    elif held == NAT8:
        codes, last = slots.acc[at:].view(np.uint8), d[HEADER_BYTES:]
        lowest, highest = range_of_levels(last, lanes)
        if highest > levels:
            last = codes[(HELD_WORKERS - 1) * lanes :]
            counts.jobs[row].invalid_codes += hold_nat8(last, d[HEADER_BYTES:], lanes, levels)[0]
        octaves = int(max(highest, slots.table[slot].highest)) - int(min(lowest, slots.table[slot].lowest))
        emit_held(payload, kept, codes, last, children, octaves, lanes, noise, word)
    elif held != 0:
        unpack_nat4(slots.codes, d[HEADER_BYTES:], lanes)
        add_nat8(slots.sums, slots.codes, lanes, True, levels)
        for i in range(children - 1):
            unpack_nat4(slots.codes, slots.acc[at:].view(np.uint8)[i * lanes // 2 :], lanes)
            add_nat8(slots.sums, slots.codes, lanes, False, levels)
        emit(encoding, payload, slots.sums, lanes, words, word, shift)
    else:
        emit(encoding, payload, slots.acc[at:], lanes, words, word, shift)


@inline
def give_row_back(slot: int, row: int, jobs: Any, slots: Any) -> None:
    """Put the row of ``acc`` that ``slot`` has on the job's stack of free ones."""
    slots.free[jobs.table[row].base + jobs.table[row].free] = slots.table[slot].at
    jobs.table[row].free += 1
    slots.table[slot].at = -1


@inline
def write_ack(to: Array, d: Array, row: int, jobs: Any) -> None:
    """Write the acknowledgement that a child gets in place of the result that ``d`` is or asks for."""
    copy(to, d, HEADER_BYTES)
    to[KIND_AT] = ACK
    to[FORMAT_AT] = jobs.table[row].result_encoding[d[OP_AT]]
    put_u16(to, LANES_AT, 0)


@inline
def write_notice(to: Array, d: Array, why: int) -> None:
    """The notice that contribution ``d`` was refused, into ``to``."""
    copy(to, d, HEADER_BYTES)
    to[KIND_AT] = NOTICE
    put_u16(to, LANES_AT, 0)
    put_u16(to, OWNER_AT, why)
