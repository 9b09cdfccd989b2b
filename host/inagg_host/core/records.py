"""Contents of a job's records when it begins, and when an epoch of it does."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.base import datagrams_per_call
from inagg_wire.header import Header
from inagg_wire.layout import GENERATION_MAX, Encoding, Kind, Op, datagram_bytes
from inagg_wire.slots import Lease

from . import recovery
from .epoch import Epoch
from .schedule import SIGNATURE_LANES, Phase, drafted_blocks
from .state import OK, State, make_state


def make_records(epoch: Epoch, scales: int, chunk: int, keep_results: bool, batch_datagrams: int) -> State:
    """Records of a job that begins with ``epoch``. ``scales``: in a block; ``chunk``: blocks whose scales are sent
    together; for the others see `Engine`."""
    fmt, lanes, n, shards = epoch.format, epoch.lanes, epoch.workers, len(epoch.shards)
    results = {op: (fmt.result_encoding(op, n), fmt.lanes_for(op, lanes)) for op in Op}
    result_bytes = {op: datagram_bytes(*result) for op, result in results.items()}
    sizes = {op: datagram_bytes(fmt.encoding(op), fmt.lanes_for(op, lanes)) for op in Op}
    drafted = drafted_blocks(chunk, shards) if fmt.up is Encoding.NAT8 else 0
    slots = max(shard.lease.slots for shard in epoch.shards)
    kept_bytes = max(result_bytes.values()) if keep_results else 0
    state = make_state(shards, slots, drafted, sizes[Op.SUM], kept_bytes)
    job = state.job[0]
    job["batch"] = datagrams_per_call(max(sizes[Op.SUM], result_bytes[Op.SUM]), batch_datagrams)
    job["scales"] = scales
    job["signature"] = SIGNATURE_LANES if fmt.scale_lanes(lanes) > SIGNATURE_LANES else 0
    job["needs"] = Phase.REFINE if fmt.refined else Phase.SCALE
    for name in ("rto_min_s", "rto_max_s", "rto_first_s"):
        job[name] = getattr(recovery, name.upper())
    job["poll_s"] = job["held_s"] = np.inf
    for op in Op:
        job["size"][op], job["encoding"][op] = sizes[op], fmt.encoding(op)
        job["result_encoding"][op], job["result_lanes"][op] = results[op]
        job["result_size"][op] = result_bytes[op]
    for record, shard in zip(state.shards, epoch.shards, strict=True):
        start_shard(record, shard.lease, shard.resume_block)
        record["snd_max"] = record["first"] = shard.resume_block
        record["cwnd"] = record["ceiling"] = shard.lease.window
    begin_epoch(state, epoch)
    return state


def begin_epoch(state: State, epoch: Epoch) -> None:
    """Have the job's record say what is of ``epoch``; `start_shard` is for its shards'."""
    e, job = epoch, state.job[0]
    job["number"], job["token"], job["error"], job["owner"] = e.job, e.token, OK, e.rank + 1
    state.shards["credit"] = e.credit or e.shards[0].lease.window
    for op in Op:
        header = Header(
            Kind.CONTRIBUTION, op, e.format.encoding(op), e.format.lanes_for(op, e.lanes), e.job, e.token,
            e.shards[0].lease.base, 1,
        )  # fmt: skip
        job["header"][op] = np.frombuffer(header.pack(), np.uint8)


def start_shard(record: Any, lease: Lease, block: int) -> None:
    """Begin an epoch of a shard at ``block``."""
    record["base"], record["slots"], record["slot_bits"] = lease.base, lease.slots, lease.slots.bit_length() - 1
    record["snd_una"] = record["snd_nxt"] = record["round_end"] = block
    record["end"] = (lease.round(block) + 1) * lease.slots * GENERATION_MAX
    record["highest"] = record["highest_alone"] = block - 1
    record["flight"] = record["lost"] = record["backoff"] = record["timer_expired"] = record["spurious"] = 0
    record["expired"] = record["recover"] = record["again"] = block
