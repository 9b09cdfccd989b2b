"""The protocol of `inagg_switch.aggregation.model`, over a buffer of equal datagrams, as one Numba kernel.

Validation (`validation`) is total and comes first; only then does state change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline, jit
from inagg_wire.layout import HEADER_BYTES

from .deferred_sum import hold_nat4, hold_nat8
from .kernels import NAT8, Array, absorb
from .peers import PARENT
from .replies import write_ack, write_notice, write_result
from .runs import close_run, room_for
from .state import BYTES_IN, BYTES_OUT, DATAGRAMS_IN, DATAGRAMS_OUT, NOTICES, Counts, Jobs, Noise, Out, Slots, Tables
from .uplink import is_asked_for, slot_below, take_result, write_partial
from .validation import (
    DUPLICATE,
    GENERATION_AT,
    JOB_AT,
    NOTICED_REASONS,
    OP_AT,
    OUTSIDE_WINDOW,
    OWNER_AT,
    SLOT_AT,
    STALE,
    WRONG_OP,
    malformed,
    put_u32,
    u16,
    u32,
    unbound,
)

ABSORBED, COMPLETE, ELSEWHERE, RESEND, ACK_AGAIN, UP, UP_AGAIN = 0, -1, -2, -3, -4, -5, -6
"""Outcomes of a datagram that is not dropped: it is in the sum, or its part of the result is here; with it, the result
is there for all children, or for its owner; or has gone to an owner elsewhere, for all children to know; the child gets
the result again, or its acknowledgement; the sum goes up to the parent, or does so again."""


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
    s = slots.table[slot]
    if s.at < 0:
        jobs.table[row].free -= 1
        s.at = slots.free[jobs.table[row].base + jobs.table[row].free]
    return slots.acc[s.at :]


@inline
def contribute(d: Array, row: int, child: int, now: float, jobs: Any, slots: Any, counts: Any) -> int:
    """Take a contribution that fits its binding: the protocol of the design. A `Reason`, or what became of it."""
    op, slot, generation = np.int64(d[OP_AT]), u32(d, SLOT_AT), u32(d, GENERATION_AT)
    s, full, up_full = slots.table[slot], jobs.table[row].full, jobs.table[row].up_full
    if generation < s.tag:
        counts.jobs[row].stale[child] += 1
        return STALE
    if generation > s.tag:
        if generation != s.tag + 1 or s.seen != full or s.here != up_full:
            return OUTSIDE_WINDOW
        s.tag = generation
        s.seen = s.here = s.bare = s.asked = 0
    before, bit = np.int64(s.seen), 1 << child
    if before != 0 and op != s.op:
        return WRONG_OP
    if before & bit:
        owner = u16(d, OWNER_AT)
        its_own = owner == 0 or jobs.child_of[row, owner - 1] == child
        if before == full and s.here == up_full and not (its_own and s.bare != 0):
            counts.jobs[row].resends[child] += 1
            return RESEND if its_own else ACK_AGAIN
        counts.jobs[row].duplicates[child] += 1
        return UP_AGAIN if before == full and is_asked_for(slot, bit, slots) else DUPLICATE
    if before == 0:
        s.op = op
        s.since = now
    s.seen = before | bit
    counts.jobs[row].contributions[child] += 1
    lanes, levels, payload = jobs.table[row].lanes[op], jobs.table[row].levels[op], d[HEADER_BYTES:]
    held, complete = jobs.table[row].held[op], before | bit == full
    acc = row_of_slot(slot, row, jobs, slots)
    if held == 0:
        counts.jobs[row].invalid_codes += absorb(jobs.table[row].encoding[op], acc, payload, lanes, before == 0, levels)
    elif not complete:  # else the result is made right from the payload
        codes, contributions = acc.view(np.uint8), count_bits(before)
        if held == NAT8:
            invalid, lowest, highest = hold_nat8(codes[contributions * lanes :], payload, lanes, levels)
            counts.jobs[row].invalid_codes += invalid
            s.lowest = min(lowest, s.lowest) if before != 0 else lowest
            s.highest = max(highest, s.highest) if before != 0 else highest
        else:
            hold_nat4(codes[contributions * lanes // 2 :], payload, lanes)
    if not complete:
        return ABSORBED
    if up_full != 0:
        return UP
    counts.jobs[row].results += 1
    return COMPLETE


@inline
def arrive(d: Array, row: int, jobs: Any, slots: Any, counts: Any) -> int:
    """Take what the parent has sent, which fits the binding. A `Reason`, or what became of it."""
    slot, up_full = slot_below(d, row, jobs), jobs.table[row].up_full
    s = slots.table[slot]
    before = s.here
    why = take_result(d, row, jobs, slots)
    if why != 0:
        return why
    bare = s.bare != 0
    if s.here != up_full or (before == up_full and bare):
        return ABSORBED
    counts.jobs[row].results += int(before != up_full)
    if not bare:
        return COMPLETE
    return ELSEWHERE if u16(d, OWNER_AT) != 0 else ABSORBED


@inline
def room_needed(d: Array, why: int, row: int, run: int, jobs: Any, out: Out) -> tuple[Any, Any]:
    """Datagrams, and their bytes, for which ``out`` must have room before ``d`` changes anything: all that it can
    cause, and the acknowledgements that end ``run``, the last one. ``why``: the `Reason` to refuse ``d``, or 0."""
    datagrams: Any = 1
    room: Any = HEADER_BYTES
    if why == 0:
        op = np.int64(d[OP_AT])
        datagrams = 1 << jobs.table[row].up_bits
        room = max(jobs.table[row].result_bytes[op], datagrams * jobs.table[row].up_bytes[op])
        if u16(d, OWNER_AT) != 0:
            datagrams, room = datagrams + 1, room + HEADER_BYTES
    if run >= 0 and out.runs[run].alone != 0:
        datagrams, room = datagrams + 1, room + out.runs[run].count * HEADER_BYTES
    return datagrams, room


@inline
def act(d: Array, why: int, row: int, child: int, now: float, jobs: Any, slots: Any, counts: Any) -> int:
    """Take ``d`` from ``child`` or `PARENT`, unless ``why``, a `Reason`, is against it; count it. Returns that
    `Reason`, or one that its slot gives, or what became of it."""
    if why == 0 and child == PARENT:
        why = arrive(d, row, jobs, slots, counts)
    elif why == 0:
        counts.jobs[row].bytes_in[child] += len(d)
        why = contribute(d, row, child, now, jobs, slots, counts)
    if why > 0 or why == UP_AGAIN:
        counts.drops[why if why > 0 else DUPLICATE] += 1
    return why


@inline
def send_up(
    d: Array, why: int, run: int, at: int, row: int, jobs: Any, slots: Any, counts: Any, noise: Noise, out: Out
) -> tuple[Any, Any]:
    """Write the parts of the sum of the slot of ``d`` that have no result yet, ``why`` being `UP` or `UP_AGAIN`. Takes
    and returns the number of the last run, and where the next datagram stands."""
    s, size = slots.table[u32(d, SLOT_AT)], jobs.table[row].up_bytes[np.int64(d[OP_AT])]
    for part in range(1 << jobs.table[row].up_bits):
        if (s.here & ~s.bare) >> part & 1:
            continue
        if why == UP:
            counts.jobs[row].partials += 1
        else:
            counts.jobs[row].partials_again += 1
        run, at = room_for(out, run, at, row, PARENT, 0, size, jobs)
        write_partial(out.buffer[at:], d, part, row, jobs, slots, noise)
        at += size
    return run, at


@inline
def answer(
    d: Array,
    why: int,
    run: int,
    at: int,
    row: int,
    child: int,
    jobs: Any,
    slots: Any,
    counts: Any,
    noise: Noise,
    out: Out,
) -> tuple[Any, Any]:
    """Write the result, acknowledgement or notice that ``d`` causes, ``why`` being its `Reason` or what became of it.
    Takes and returns the same as `send_up`."""
    owner = u16(d, OWNER_AT) if why < 0 else 0
    result = why in (COMPLETE, RESEND)
    alone = int(why == COMPLETE and owner != 0)
    to: Any = np.int64(-1) if why in (COMPLETE, ELSEWHERE) else child  # -1: to all
    if alone:
        to = np.int64(jobs.child_of[row, owner - 1])
    size = jobs.table[row].result_bytes[np.int64(d[OP_AT])] if result else HEADER_BYTES
    run, at = room_for(out, run, at, row, to, alone, size, jobs)
    if result:
        write_result(out.buffer[at:], d, row, jobs, slots, counts, noise)
    elif why < 0:
        write_ack(out.buffer[at:], d, row, jobs)
        if why == ELSEWHERE:
            put_u32(out.buffer[at:], SLOT_AT, slot_below(d, row, jobs))
    else:
        counts.drops[NOTICES] += 1
        write_notice(out.buffer[at:], d, why)
    return run, at + size


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

    ``ranks``: int8, by job row, who this source is in that job, see `Peers.ranks`. Returns how many datagrams are taken
    (all, unless ``out`` filled up: then send it and call again) and how many runs are in ``out``.
    """
    total, run, at = len(data) // size, -1, 0
    for i in range(first, total):
        d = data[i * size : (i + 1) * size]
        row: Any = -1
        child: Any = -1
        why = malformed(d)
        if why == 0:
            row = np.int64(jobs.row[u16(d, JOB_AT)])
            child = np.int64(ranks[row]) if row >= 0 else -1
            why = unbound(d, row, child, jobs)
        datagrams, room = room_needed(d, why, row, run, jobs, out)
        if run + datagrams >= len(out.runs) or at + room > len(out.buffer):
            run, at = close_run(out, run, at, jobs)
            return i, run + 1
        why = act(d, why, row, child, now, jobs, slots, counts)
        if why in (UP, UP_AGAIN):
            run, at = send_up(d, why, run, at, row, jobs, slots, counts, noise, out)
        elif why < 0 or (why > 0 and NOTICED_REASONS[why] and child != PARENT):
            run, at = answer(d, why, run, at, row, child, jobs, slots, counts, noise, out)
    run, at = close_run(out, run, at, jobs)
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
        if run.to >= 0:
            to[0] = t.peers.address[run.row, run.to]
        elif t.peers.group[run.row] != 0:
            to[0] = t.peers.group[run.row]
        else:
            run.copies = 0
            for child in range(t.jobs.table[run.row].children):
                if child != run.but:
                    to[run.copies] = t.peers.address[run.row, child]
                    run.copies += 1
        t.flow[DATAGRAMS_OUT] += run.count * run.copies
        t.flow[BYTES_OUT] += run.count * run.copies * run.size
    return taken, runs
