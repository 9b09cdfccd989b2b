"""All that a worker's protocol remembers, as arrays of records: what `on_batch` and `next_batch` work on.

Blocks are numbered by the job; block g of a job with k shards is block g div k of shard g mod k, and records of a shard
have the shard's numbers. Names of sequence numbers and of congestion control are those of RFC 9293 and RFC 5681, with
blocks for octets: ``snd_una``, ``snd_nxt``, ``cwnd``; a result acknowledges its block.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from inagg_host.codec.calls import CODEC
from inagg_host.codec.ordered import offset_of
from inagg_link.base import MAX_BATCH_BYTES
from inagg_wire.layout import HEADER_BYTES, Op

OPS: Final = max(Op) + 1
OUTCOMES: Final = ("fresh", "repeated", "unneeded", "foreign", "refused", "disagrees")
"""Outcomes of received datagrams: counters by these names."""
FRESH, REPEATED, UNNEEDED, FOREIGN, REFUSED, DISAGREES = range(len(OUTCOMES))

RESULTS_MOST: Final = 1 << 12
"""More than there can be in one batch, whose `MAX_BATCH_BYTES` have headers of `HEADER_BYTES` or more."""
assert RESULTS_MOST * HEADER_BYTES > MAX_BATCH_BYTES
OPERATIONS: Final = 64
"""How many operations are in the records at a time, a power of two; further ones wait in Python."""

OK, SWITCH_REFUSES, OTHER_OP, OTHER_OPERATION, NO_MAXIMUM, TOO_LARGE, CODEC_FAILED = range(7)
"""Why a job cannot go on, see ``error``: nothing is wrong; the switch refused a block, for a reason; it said that
others send another kind of block; another rank has another operation; a scale came back that is less than the own one;
values exceed the scale that was agreed on; the codec of values that are not in the host's memory failed."""

_BY_OP = [(name, np.int64, OPS) for name in ("size", "encoding", "result_size", "result_encoding", "result_lanes")]

# fmt: off
JOB: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # Of the epoch; how many more rows than its slots a shard's ring may have, its rows, and bytes of a row.
            "number", "token", "rows", "stride",
            # The most datagrams of a shard in a piece; how many scales a block of them has, and the lanes after them
            # that sign it (0: none do); the phase that values wait for; whether results are kept.
            "batch", "scales", "signature", "needs", "keeps",
            # `inagg_wire.header.Header.owner` of results that go to this rank alone.
            "owner",
            # Counters of `State.operations`, whose record is that at its place modulo `OPERATIONS`: the oldest one that
            # is not finished, the one that is being sent, and how many there were. Compiled code alone writes the first
            # two, `Engine` alone the last, which may do so while the other is at work.
            "oldest", "sending", "loaded",
            # Where `State.memory` has room for datagrams that are sent again.
            "spare",
            # What went wrong first (`OK`: nothing), with the block (the job's number; of `TOO_LARGE`: of values) and
            # the reason.
            "error", "error_block", "error_reason",
        )
    ]
    # Bounds of the timers, see `recovery`.
    + [(name, np.float64) for name in ("rto_min_s", "rto_max_s", "rto_first_s")]
    # When to look again for what is on its way from a device, and since when it is looked for; infinity: it is not.
    + [(name, np.float64) for name in ("poll_s", "held_s")]
    + _BY_OP
    + [("header", np.uint8, (OPS, HEADER_BYTES))],
    align=True,
)
"""``size``, ``encoding`` and ``header``: of contributions, by op; headers but for slot and generation."""
OLDEST_AT, LOADED_AT = (offset_of(JOB, name) for name in ("oldest", "loaded"))

SHARD: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # ``slot_bits``: log2 of the slots.
            "base", "slots", "slot_bits",
            # Blocks below ``snd_una`` have their results, those from ``snd_nxt`` on have not been sent, all in this
            # epoch. Those below ``snd_max`` stand in the ring: if ``snd_nxt`` is less, they are sent again before any
            # new one.
            "snd_una", "snd_nxt", "snd_max",
            # The block with which the job began, and the one for which the generations start anew.
            "first", "end",
            # How many blocks may be out, that is, sent and without a result; and how many are.
            "cwnd", "flight",
            # How many may be out if nothing is lost: no more than the window, and what the switch gives credit for;
            # fewer while queues on the path are long, for how many round trips in a row they have been.
            "ceiling", "credit", "delayed",
            # The highest block with a result in this epoch (RFC 6675's HighACK with selective ones), and the highest
            # whose result came to this rank alone: by another way, so neither tells what of the other is lost.
            "highest", "highest_alone",
            # A round trip is over when this block, or a later one, has its result; of the blocks in it, how many have
            # been acknowledged, and overtaken.
            "round_end", "acked", "overtaken",
            # How many rows are marked as lost, to be sent again at once; how many were sent again so far, and how often
            # the timer has run out.
            "lost", "retransmitted", "timeouts",
            # RFC 6298: how many samples, and how often the timer has expired since the last one.
            "samples", "backoff",
            # When the timer expired last, the first block without a result, and the one that was to be sent next; of
            # those between, which is the next to be sent again, if they are taken for lost (`expire`).
            "expired", "recover", "again",
            # Whether the timer has expired since the last result; and how often in a row it has for nothing (`judge`).
            "timer_expired", "spurious",
        )
    ]
    + [
        (name, np.float64)
        for name in (
            # When the timer was started or restarted; the shortest round trip of this round.
            "timer_s", "shortest_s",
            "srtt_s", "rttvar_s",
            # The shortest of all: the path without queues and without waiting for others.
            "rtt_min_s",
        )
    ]
    + [("counts", np.int64, len(OUTCOMES))],
    align=True,
)
"""One shard's window."""

ROW: Final = np.dtype(
    [
        ("sent_s", np.float64),
        ("after", np.int64),
        ("size", np.int32),
        ("owner", np.int32),
        ("op", np.uint8),
        ("acked", np.bool_),
        ("taken", np.bool_),
        ("once", np.bool_),
        ("lost", np.bool_),
    ],
    align=True,
)
"""One block that was sent, in the row of its slot. ``sent_s``: when it was first sent in this epoch; ``after``: the
last block that was new when it was last sent; ``size``: bytes of its datagram; ``owner``: 1 + the only rank that gets
its result, the others are told that it has, or 0; ``acked``: it has its result in this
epoch, or none is awaited; ``taken``: its result was given to the caller, once over all epochs; ``once``: it was sent
once so far, and the timer has not run out (Karn's rule); ``lost``: it is to be sent again at once."""

OPERATION: Final = np.dtype(
    CODEC.descr
    + [
        (name, np.int64)
        for name in (
            # Of this record. Its first block in the job, how many it takes, and how many have no result.
            "address", "first_block", "count", "left",
            # Addresses: its items (see `schedule.ITEM`) and how many there are; by phase and chunk, how many blocks
            # of scales and refinements are not there, and how many chunks there are.
            "items", "items_count", "lacking", "chunks",
            # The item that is being sent, and how many of its blocks are; the item whose results come.
            "item", "sent", "item_in",
            # How many blocks of values, from the first on, have their own scales; whether finding them drafts values.
            "scaled", "drafting",
            # Whether the sums of each piece go to one rank alone, that of piece 0 to rank 0, and so on; or to all.
            "scatters",
            # Addresses of `codec.calls`.
            "encode", "decode", "scale", "tell",
            # The address of a word that is told when it is finished (0: nobody waits for it there).
            "summed",
            "invalid_codes",
        )
    ]
    + [("signature", np.uint8, 8)],
)
"""One tensor on its way, or bytes whose maxima are asked for. It begins with the fields of `CODEC`, as kernels are
given its address."""

# fmt: on
PIECE: Final = np.dtype([(name, np.int64) for name in ("start", "count", "size", "shard")])
"""Datagrams to send: ``count`` of ``size`` bytes, back to back from ``start`` on in `State.memory`."""


class State(NamedTuple):
    """The state of one rank."""

    job: Any
    """`JOB`, (1,)."""
    shards: Any
    """`SHARD`, (shards,)."""
    rows: Any
    """`ROW`, (shards, slots)."""
    memory: Any
    """uint8: the shards' rings, one after the other, then room for a batch. Block b of a shard has its datagram in row
    b modulo rows, for as long as its row in ``rows``; so if there are more rows than slots, those of as many of the
    next blocks are free, for drafts."""
    operations: Any
    """`OPERATION`, (`OPERATIONS`,)."""
    pieces: Any
    """`PIECE`, (shards,): what `next_batch` has found to send."""
    places: Any
    blocks: Any
    """int64, (`RESULTS_MOST`,): where results stand in their batch, and of which blocks of the shard they are."""
    kept: Any
    """uint8, (shards, slots, bytes): the last results as they came, for `reconcile`; (0, 0, 0) if not wanted."""


def make_state(shards: int, slots: int, drafted: int, stride: int, kept_bytes: int) -> State:
    """A state whose windows have sent nothing, with so many ``slots`` each, a power of two. ``drafted``: so many more
    blocks of each shard, from the next one on, have a place in the ring. ``stride``: bytes of the largest datagram;
    ``kept_bytes``: of the largest result, 0 if none is to be kept."""
    ring_rows = 1 << (slots + drafted - 1).bit_length()
    rows = np.zeros((shards, slots), ROW)
    rows["acked"] = rows["taken"] = True
    state = State(
        np.zeros(1, JOB),
        np.zeros(shards, SHARD),
        rows,
        # Written, so that no all-reduce has to wait for the pages.
        np.full(shards * ring_rows * stride + MAX_BATCH_BYTES, 0, np.uint8),
        np.zeros(OPERATIONS, OPERATION),
        np.zeros(shards, PIECE),
        np.zeros(RESULTS_MOST, np.int64),
        np.zeros(RESULTS_MOST, np.int64),
        np.zeros((shards, slots, kept_bytes) if kept_bytes else (0, 0, 0), np.uint8),
    )
    job = state.job[0]
    job["rows"], job["stride"], job["keeps"] = ring_rows, stride, kept_bytes > 0
    job["spare"] = shards * ring_rows * stride
    state.shards["rtt_min_s"] = state.shards["shortest_s"] = np.inf
    return state
