"""Recovery from losses: timers (RFC 6298), blocks that later ones have overtaken (RFC 5681, fast retransmit; RFC 8985),
and the window's size."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline, jit

from .state import State

RTO_MIN_S = 0.002
"""RFC 6298 (2.4) says one second, for the Internet. Here a round trip is less than a millisecond, and what makes it
longer is mostly a rank that is not ready yet, or a scheduler. To send again for nothing costs a datagram or two."""
RTO_MAX_S = 0.25
"""(2.5) allows a bound of 60 s or more. A rank that waits for another sends a datagram so often."""
RTO_FIRST_S = 0.02
"""Time before the first sample; (2.1) says one second."""
SPURIOUS_FEW = 2
SPURIOUS_MOST = 6
"""A timer that ran out so often in a row for nothing is twice as long, and again each time, up to 32 ms: else
all ranks send again whatever they wait for whenever one of them computes, or waits for a processor. See `judge`."""
TURN_S = 0.001
"""How long processes on the way may wait for their turn on a processor, where that is not rare."""
GRANULARITY_S = 1e-4
BACKOFF_MOST = 16

REORDER_BLOCKS = 3
"""A block is taken for lost when the result of one this much later has come: the number of RFC 5681's duplicate
acknowledgements. For all ranks send blocks in order, so whoever has the later result knows that each of them has sent
the earlier block. Which answer came last tells nothing: it may be to something that was sent again, while another rank
has yet to send what this one sent before that. So a block that was sent again is taken for lost again only when the
result has come of a block that was new after that (RFC 8985, RACK, goes by time); or when the timer runs out."""

CWND_LEAST = 32
"""However many are lost, so many blocks may be out: fewer would leave batches half empty, and starve the link."""
CWND_EXPIRED = 8
"""Blocks out after the timer has shown that what is out is lost (RFC 5681, section 3.1, has one). Eight ranks that
share a queue of 690 datagrams have 0.55 of its wire so, and 0.39 with `CWND_LEAST`; of 100 datagrams, 0.41 and 0.57
(what tests/host/core/test_rates.py measures)."""
OVERRUN = 4
"""More than one in so many lost means that the path cannot hold what is out. Fewer are taken for chance."""

QUEUE_S = 0.0015
"""A round trip that is so much longer than the shortest has stood in queues: others wait behind what is out. Less would
starve a link whenever a process waits for its turn. It counts for who has the whole window out; who has less may see up
to twice as much, so that shares become equal (as Swift scales its target with the flow's window, section 3.5)."""
DELAYED_MOST = 2
"""Long round trips in a row after which the ceiling falls. A single one has waited for a rank that was not ready."""
DECREASE, DECREASE_MOST = 0.8, 0.5
"""Fall per excess, and at most: beta and max_mdf of Swift (Kumar et al., SIGCOMM 2020, algorithm 1)."""
CEILING_SHARE = 4
"""The ceiling never falls below this part of the window, nor below `CWND_LEAST`, so that senders who fill every queue
leave this one its share: 200 KB of the window that a switch chooses for frames of 1500 bytes."""


@jit
def sample_rtt(s: Any, rtt_s: float) -> None:
    """Take the round trip of a datagram that was sent once (Karn's rule, section 3 of RFC 6298). It ends with the
    result, so it includes the slowest rank's delay."""
    rtt_s = max(rtt_s, 0.0)
    if s.samples == 0:  # (2.2)
        s.srtt_s, s.rttvar_s = rtt_s, rtt_s / 2
    else:  # (2.3): alpha = 1/8, beta = 1/4, the variation first
        s.rttvar_s += (abs(s.srtt_s - rtt_s) - s.rttvar_s) / 4
        s.srtt_s += (rtt_s - s.srtt_s) / 8
    s.rtt_min_s = min(s.rtt_min_s, rtt_s)
    s.samples += 1
    s.backoff = 0


@jit
def rto_s(job: Any, s: Any) -> float:
    """How long after the last progress the timer of a shard runs out."""
    rto_s = job.rto_first_s
    if s.samples != 0:
        # The variation of the shortest round trips says little, so RFC 8985 takes twice the round trip (section 7.2).
        # Here it is three times: with nothing lost a result takes so long when a job that begins puts its window, which
        # is a round trip of the link, into the queue before it. A process, too, may wait longer than four variations.
        least_s = job.rto_min_s * 2.0 ** max(min(s.spurious, SPURIOUS_MOST) - SPURIOUS_FEW, 0)
        rto_s = max(least_s, s.srtt_s + max(GRANULARITY_S, 4 * s.rttvar_s), 3 * s.srtt_s)
    return float(min(rto_s * 2.0 ** min(s.backoff, BACKOFF_MOST), job.rto_max_s))


@jit
def expires_s(job: Any, s: Any) -> float:
    """Time at which a shard's timer runs out; infinity while nothing is out, and so none runs."""
    return float(s.timer_s + rto_s(job, s)) if s.snd_una != s.snd_nxt else np.inf


@jit
def judge(s: Any, now: float) -> None:
    """Judge, when results have come for the first time since the timer ran out, whether something had been lost.

    If so, what was sent again is answered after a round trip of a path that is empty. All ranks' timers start with the
    same result, so if it was another rank's datagram that was lost, the answer comes then too. A result that comes
    earlier, or later, was waited for: for a rank that was not ready (the question of Eifel, RFC 3522, which goes by
    time stamps).
    """
    waited_s = now - s.timer_s
    if s.rtt_min_s / 2 <= waited_s <= 2 * s.rtt_min_s + TURN_S:
        s.spurious //= 2
    else:
        s.spurious = min(s.spurious + 1, SPURIOUS_MOST)
    s.timer_expired = 0


@jit
def end_round_trip(s: Any) -> None:
    """Take the sample of a round trip, if one is over, and adapt the window.

    Its shortest round trip is the sample: the others may have waited for a rank whose datagrams were lost, and if every
    rank took such waits for the network's time, its own would grow, and so on. One sample per round trip is what RFC
    6298 was made for (section 3).
    """
    if max(s.highest, s.highest_alone) < s.round_end:
        return
    if s.shortest_s < np.inf:
        sample_rtt(s, s.shortest_s)
    s.ceiling = ceiling_after(s)
    s.cwnd = adapted(min(s.cwnd, s.ceiling), s.ceiling, s.acked, s.overtaken)
    s.round_end, s.shortest_s, s.acked, s.overtaken = s.snd_nxt, np.inf, 0, 0


@jit
def ceiling_after(s: Any) -> int:
    """How many blocks may be out after the round trip that is over, if nothing is lost.

    The window, or less where the switch has no room for so many of every rank. What is out and not on a wire stands in
    queues, before whatever else goes there: of other jobs, of TCP. So, as in Swift and TIMELY, the ceiling falls while
    round trips are longer than the shortest by more than `QUEUE_S`, and rises while they are not. The shortest of each
    counts, and two in a row, since they end with the results, which may have waited for a slow rank.
    """
    most = min(s.slots // 2, s.credit)
    ceiling = min(s.ceiling, most)
    if s.shortest_s == np.inf:
        return int(ceiling)
    queued_s, allowed_s = s.shortest_s - s.rtt_min_s, QUEUE_S * (2 - ceiling / most)
    if queued_s <= allowed_s:
        s.delayed = 0
        return int(min(ceiling + max(most // 8, 1), most))
    s.delayed += 1
    if s.delayed < DELAYED_MOST:
        return int(ceiling)
    kept = max(1 - DECREASE * (queued_s - allowed_s) / queued_s, DECREASE_MOST)
    return int(max(int(ceiling * kept), min(most, max(s.slots // 2 // CEILING_SHARE, CWND_LEAST))))


@jit
def adapted(cwnd: int, ceiling: int, acked: int, overtaken: int) -> int:
    """How many blocks may be out in the next round trip, if in the last one it was ``cwnd``.

    As long as nothing is lost, as many as the ceiling. When something is lost, the window stands still at the first
    lost block; so only three eighths of it are out, and the rest is room to go on meanwhile. (A half is better where
    processors are short, a quarter over a link: tests/host/sim/rates.py.) If so much is lost that the path must have
    overrun, half as many are out, and again, until it can hold them.
    """
    least = min(ceiling, CWND_LEAST)
    if overtaken * OVERRUN > acked:
        return int(max(cwnd // 2, least))
    return int(min(cwnd + max(ceiling // 16, 1), max(lossy(ceiling), least) if overtaken else ceiling))


@inline
def lossy(ceiling: int) -> Any:
    """How many may be out over a path that loses some by chance; see `adapted`. Fewer: it overruns."""
    return ceiling * 3 // 8


@jit
def mark_lost(s: Any, row: Any) -> None:
    """Have a block sent again at once."""
    if not row.lost:
        row.lost = True
        s.lost += 1


@inline
def highest_like(s: Any, row: Any, owner: int) -> Any:
    """The highest block with a result that comes by the same way as that of ``row``."""
    return s.highest_alone if row.owner == owner else s.highest


@jit
def mark_overtaken(st: State, shard: int) -> None:
    """Have the blocks sent again at once that a block `REORDER_BLOCKS` or more after the last one that was new when
    they were sent has overtaken."""
    s, owner = st.shards[shard], st.job[0].owner
    for block in range(s.snd_una, max(s.highest, s.highest_alone) - REORDER_BLOCKS + 1):
        row = st.rows[shard, block & (s.slots - 1)]
        if not row.acked and not row.lost and row.after + REORDER_BLOCKS <= highest_like(s, row, owner):
            mark_lost(s, row)
            s.overtaken += 1
            s.spurious = 0  # this path loses


@jit
def expire(st: State, shard: int, now: float) -> None:
    """Back off if the timer has run out (RFC 6298, 5.5), and have blocks sent again: those that were overtaken, and so
    are lost again; the first that has no result; and, the first time, the last one, whose result would tell that the
    others are lost (a probe as in RFC 8985, section 7). For the others may wait for a slow rank.

    If the first one got its result and then nothing came for so long again, they do not wait, but are lost. Then all
    are sent again, as few at once as a path holds that was overrun. It is the question of F-RTO (RFC 5682), which goes
    by the acknowledgements that come after the first.
    """
    s, most, owner = st.shards[shard], st.job[0].batch, st.job[0].owner
    if now < expires_s(st.job[0], s):
        return
    lost = s.expired < s.snd_una < s.recover
    s.backoff += 1
    s.timeouts += 1
    s.timer_expired = s.samples != 0
    s.timer_s = now
    marked = 0
    last: Any = -1
    for block in range(s.snd_una, s.snd_nxt):
        row = st.rows[shard, block & (s.slots - 1)]
        if not row.acked:
            row.once = False  # its result comes late, for whatever reason
            last = block
            if marked < most and (marked == 0 or block <= highest_like(s, row, owner) - REORDER_BLOCKS):
                mark_lost(s, row)
                marked += 1
    s.expired = s.snd_una
    if lost:
        s.spurious = 0
        s.cwnd = min(s.cwnd, CWND_EXPIRED)
        s.again, s.recover = s.snd_una, s.snd_nxt
        recover(st, shard)
    elif s.again == s.recover:  # else it goes on
        s.again = s.recover = s.snd_nxt
        if s.backoff == 1:
            mark_lost(s, st.rows[shard, last & (s.slots - 1)])


@jit
def recover(st: State, shard: int) -> None:
    """While all that was out when the timer expired is sent again: mark what the window has room for."""
    s = st.shards[shard]
    while s.again < min(s.recover, s.snd_una + s.cwnd):
        row = st.rows[shard, s.again & (s.slots - 1)]
        if not row.acked:
            mark_lost(s, row)
        s.again += 1
