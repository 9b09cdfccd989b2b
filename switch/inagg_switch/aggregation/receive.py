"""The protocol of `inagg_switch.aggregation.model`, over a buffer of equal datagrams, as one Numba kernel.

Validation (`validation`) is total and comes first; only then does state change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline, jit
from inagg_wire.layout import HEADER_BYTES, UDP_PAYLOAD_BYTES_MAX

from .deferred_sum import HELD_WORKERS, emit_held, hold_nat4, hold_nat8, range_of_levels, unpack_nat4
from .kernels import NAT8, Array, absorb, add_nat8, emit
from .state import BYTES_IN, BYTES_OUT, DATAGRAMS_IN, DATAGRAMS_OUT, NOTICES, Counts, Jobs, Noise, Out, Slots, Tables
from .validation import (
    DUPLICATE,
    FORMAT_AT,
    GENERATION_AT,
    JOB_AT,
    KIND_AT,
    LANES_AT,
    NOTICE,
    NOTICED_REASONS,
    OP_AT,
    OUTSIDE_WINDOW,
    REASON_AT,
    RESULT,
    SLOT_AT,
    STALE,
    WRONG_OP,
    malformed,
    u16,
    u32,
    unbound,
)

RUN_DATAGRAMS = 64
"""Datagrams of one run: what one system call sends (Linux, UDP_MAX_SEGMENTS)."""
RUN_BYTES = UDP_PAYLOAD_BYTES_MAX
"""Bytes of one run."""

ABSORBED, COMPLETE, RESEND = 0, -1, -2
"""What became of a contribution that is not dropped."""

CRC_TABLE = np.zeros(256, np.uint32)
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0xEDB88320 if _crc & 1 else 0)
    CRC_TABLE[_byte] = _crc


@inline
def copy(to: Array, data: Array, size: int) -> None:
    for i in range(size):
        to[i] = data[i]


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


@inline
def count_bits(bitmap: Any) -> int:
    count = 0
    while bitmap != 0:
        bitmap &= bitmap - 1
        count += 1
    return count


@inline
def row_of_slot(slot: int, row: int, jobs: Any, slots: Any) -> Any:
    """The row of ``slots.acc`` for a contribution to ``slot``; it takes one if it has none."""
    if slots.row[slot] < 0:
        jobs.table[row].free -= 1
        slots.row[slot] = slots.free[jobs.table[row].base + jobs.table[row].free]
    return np.int64(slots.row[slot])


@inline
def contribute(d: Array, row: int, worker: int, now: float, jobs: Any, slots: Any, counts: Any) -> int:
    """Take a contribution that fits its binding: the protocol of the design. A `Reason`, or what became of it."""
    op, slot, generation = np.int64(d[OP_AT]), u32(d, SLOT_AT), u32(d, GENERATION_AT)
    if generation < slots.tag[slot]:
        counts.jobs[row].stale[worker] += 1
        return STALE
    if generation > slots.tag[slot]:
        if generation != slots.tag[slot] + 1 or slots.seen[slot] != jobs.table[row].full:
            return OUTSIDE_WINDOW
        slots.tag[slot] = generation
        slots.seen[slot] = 0
    before, bit = np.int64(slots.seen[slot]), 1 << worker
    if before != 0 and op != slots.op[slot]:
        return WRONG_OP
    if before & bit:
        if before != jobs.table[row].full:
            counts.jobs[row].duplicates[worker] += 1
            return DUPLICATE
        counts.jobs[row].resends[worker] += 1
        return RESEND
    if before == 0:
        slots.op[slot] = op
        slots.since[slot] = now
    slots.seen[slot] = before | bit
    counts.jobs[row].contributions[worker] += 1
    lanes, levels, payload = jobs.table[row].lanes[op], jobs.table[row].levels[op], d[HEADER_BYTES:]
    held, complete = jobs.table[row].held[op], before | bit == jobs.table[row].full
    acc = slots.acc[row_of_slot(slot, row, jobs, slots)]
    if held == 0:
        counts.jobs[row].invalid_codes += absorb(jobs.table[row].encoding[op], acc, payload, lanes, before == 0, levels)
    elif not complete:  # else the result is made right from the payload
        codes, contributions = acc.view(np.uint8), count_bits(before)
        if held == NAT8:
            invalid, lowest, highest = hold_nat8(codes[contributions * lanes :], payload, lanes, levels)
            counts.jobs[row].invalid_codes += invalid
            slots.lowest[slot] = min(lowest, slots.lowest[slot]) if before != 0 else lowest
            slots.highest[slot] = max(highest, slots.highest[slot]) if before != 0 else highest
        else:
            hold_nat4(codes[contributions * lanes // 2 :], payload, lanes)
    if not complete:
        return ABSORBED
    counts.jobs[row].results += 1
    return COMPLETE


@inline
def write_result(to: Array, d: Array, row: int, jobs: Any, slots: Any, counts: Any, noise: Noise) -> None:
    """The result of the slot that contribution ``d`` names, into ``to``."""
    op, slot, generation = np.int64(d[OP_AT]), u32(d, SLOT_AT), u32(d, GENERATION_AT)
    copy(to, d, HEADER_BYTES)
    to[KIND_AT] = RESULT
    to[FORMAT_AT] = jobs.table[row].result_encoding[op]
    payload, size, at = to[HEADER_BYTES:], jobs.table[row].result_bytes[op] - HEADER_BYTES, np.int64(slots.row[slot])
    if at < 0:
        copy(payload, slots.results[slot], size)
        return
    word = np.uint32(group_0_word(jobs.table[row].seed, slot, generation))
    encoding, lanes, shift = jobs.table[row].result_encoding[op], jobs.table[row].lanes[op], jobs.table[row].shift[op]
    held, levels, others = jobs.table[row].held[op], jobs.table[row].levels[op], jobs.table[row].workers - 1
    # What is held is kept only until here: ``d`` is the last contribution, which is held nowhere.
    if held == NAT8:
        codes, last = slots.acc[at].view(np.uint8), d[HEADER_BYTES:]
        lowest, highest = range_of_levels(last, lanes)
        if highest > levels:
            last = codes[(HELD_WORKERS - 1) * lanes :]
            counts.jobs[row].invalid_codes += hold_nat8(last, d[HEADER_BYTES:], lanes, levels)[0]
        octaves = int(max(highest, slots.highest[slot])) - int(min(lowest, slots.lowest[slot]))
        emit_held(payload, slots.results[slot], codes, last, others + 1, octaves, lanes, noise, word)
    elif held != 0:
        unpack_nat4(slots.codes, d[HEADER_BYTES:], lanes)
        add_nat8(slots.sums, slots.codes, lanes, True, levels)
        for i in range(others):
            unpack_nat4(slots.codes, slots.acc[at].view(np.uint8)[i * lanes // 2 :], lanes)
            add_nat8(slots.sums, slots.codes, lanes, False, levels)
        emit(encoding, payload, slots.sums, lanes, noise.lanes, word, shift)
    else:
        emit(encoding, payload, slots.acc[at], lanes, noise.lanes, word, shift)
    if size <= slots.results.shape[1]:
        if held != NAT8:  # else it is there
            copy(slots.results[slot], payload, size)
        slots.free[jobs.table[row].base + jobs.table[row].free] = at
        jobs.table[row].free += 1
        slots.row[slot] = -1


@inline
def write_notice(to: Array, d: Array, why: int) -> None:
    """The notice that contribution ``d`` was refused, into ``to``."""
    copy(to, d, HEADER_BYTES)
    to[KIND_AT] = NOTICE
    to[LANES_AT] = 0
    to[LANES_AT + 1] = 0
    to[REASON_AT] = np.uint8(why >> 8)
    to[REASON_AT + 1] = np.uint8(why)


@jit
def receive(
    data: Array,
    size: int,
    first: int,
    now: float,
    ranks: Array,
    jobs: Jobs,
    slots: Slots,
    counts: Counts,
    noise: Noise,
    out: Out,
) -> tuple[int, int]:
    """Take the datagrams of ``size`` bytes in ``data`` from number ``first`` on, all from one source.

    ``ranks``: int8, by job row, the rank that this source has in that job, or -1. Returns how many datagrams are taken
    (all, unless ``out`` filled up: then send it and call again) and how many runs are in ``out``.
    """
    total, run, at = len(data) // size, -1, 0
    for i in range(first, total):
        d = data[i * size : (i + 1) * size]
        row: Any = -1
        worker: Any = -1
        why = malformed(d)
        if why == 0:
            row = np.int64(jobs.row[u16(d, JOB_AT)])
            worker = np.int64(ranks[row]) if row >= 0 else -1
            why = unbound(d, row, worker, jobs)
        # Make sure of room for what it can cause before it changes anything.
        room = HEADER_BYTES if why else jobs.table[row].result_bytes[d[OP_AT]]
        if run + 1 == len(out.runs) or at + room > len(out.buffer):
            return i, run + 1
        if why == 0:
            counts.jobs[row].bytes_in[worker] += size
            why = contribute(d, row, worker, now, jobs, slots, counts)
        if why > 0:
            counts.drops[why] += 1
        if why == ABSORBED or (why > 0 and not NOTICED_REASONS[why]):
            continue
        if why > 0:
            counts.drops[NOTICES] += 1
            to, bytes_out = worker, HEADER_BYTES
            write_notice(out.buffer[at:], d, why)
        else:
            to, bytes_out = (worker if why == RESEND else -1), jobs.table[row].result_bytes[d[OP_AT]]
            write_result(out.buffer[at:], d, row, jobs, slots, counts, noise)
        at += bytes_out
        last = out.runs[run]
        full = run < 0 or last.count == RUN_DATAGRAMS or (last.count + 1) * bytes_out > RUN_BYTES
        if full or last.row != row or last.worker != to or last.size != bytes_out:
            run += 1
            last = out.runs[run]
            last.row, last.worker, last.size, last.count = row, to, bytes_out, 0
        last.count += 1
    return total, run + 1


@jit
def take_batch(data: Array, size: int, first: int, now: float, source: int, t: Tables, out: Out) -> tuple[int, int]:
    """`receive`, from the source that has row ``source`` of `Peers.ranks`; and where what is in ``out`` goes."""
    taken, runs = receive(data, size, first, now, t.peers.ranks[source], t.jobs, t.slots, t.counts, t.noise, out)
    t.flow[DATAGRAMS_IN] += taken - first
    t.flow[BYTES_IN] += (taken - first) * size
    for i in range(runs):
        run, to = out.runs[i], out.to[i]
        run.copies = 1
        if run.worker >= 0:
            to[0] = t.peers.address[run.row, run.worker]
        elif t.peers.group[run.row] != 0:
            to[0] = t.peers.group[run.row]
        else:
            run.copies = t.jobs.table[run.row].workers
            for rank in range(run.copies):
                to[rank] = t.peers.address[run.row, rank]
        t.flow[DATAGRAMS_OUT] += run.count * run.copies
        t.flow[BYTES_OUT] += run.count * run.copies * run.size
    return taken, runs
