"""The rules of the protocol, checked on every datagram that a rank sends or gets, however the engine works inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

from inagg_host.core.schedule import Phase
from inagg_wire.header import STRUCT
from inagg_wire.layout import HEADER_BYTES, MAGIC, VERSION, Kind, Op
from inagg_wire.slots import Lease

from .network import Bytes
from .world import World

PLACE = Struct(">II")
PREFIX_BYTES = 16
OWNER = slice(10, 12)
assert PREFIX_BYTES + PLACE.size == HEADER_BYTES


@dataclass(slots=True)
class Track:
    """One epoch, as far as it was seen. Lists are by rank and shard; blocks are numbered by the shard."""

    starts: list[int]
    leases: list[Lease]
    """By shard."""
    low: list[list[int]]
    """Below, all results of this epoch have come."""
    next: list[list[int]]
    """From here on, nothing was sent in this epoch."""
    contribution: dict[Op, bytes]
    answers: dict[bytes, tuple[Kind, Op]]
    """The first bytes of headers, without an owner."""
    beyond: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """Results at or above ``low``."""
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often a rank sent a block of the job."""


class Watch:
    """Follows all ranks through all epochs. Its methods raise AssertionError."""

    def __init__(self, world: World, flips: bool) -> None:
        """``flips``: bits may flip unnoticed."""
        self._flips = flips
        self._world = world
        self._tracks: dict[int, Track] = {}
        self._op = {
            tensor.first + item.start + i: Op.SUM if item.phase is Phase.VALUES else Op.MAX
            for tensor in world.tensors
            for item in tensor.items
            for i in range(item.count)
        }
        lanes = world.lanes
        self._owner = {
            tensor.first + item.start + i: 1 + (item.first + i) // (tensor.value_blocks(lanes) // tensor.pieces)
            for tensor in world.tensors
            if tensor.scatters
            for item in tensor.items
            if item.phase is Phase.VALUES
            for i in range(item.count)
        }
        """By the job's number, of blocks that have one."""
        self.resent = 0

    def begin(self, job: int, token: int, starts: Sequence[int], leases: Sequence[Lease]) -> None:
        """An epoch begins at blocks ``starts``, with ``leases``, by shard."""
        world, ranks = self._world, range(self._world.workers)
        assert token not in self._tracks
        self._tracks[token] = Track(
            list(starts), list(leases), [list(starts) for _ in ranks], [list(starts) for _ in ranks],
            {op: self._prefix(Kind.CONTRIBUTION, op, job, token) for op in Op},
            {self._prefix(kind, op, job, token): (kind, op)
             for kind, op in ((Kind.RESULT, Op.SUM), (Kind.RESULT, Op.MAX), (Kind.ACK, Op.SUM))},
        )  # fmt: skip
        assert world.shards == len(starts)

    def _prefix(self, kind: Kind, op: Op, job: int, token: int) -> bytes:
        fmt, lanes = self._world.format, self._world.lanes
        encoding = fmt.encoding(op) if kind is Kind.CONTRIBUTION else fmt.result_encoding(op, self._world.workers)
        lanes = 0 if kind is Kind.ACK else fmt.lanes_for(op, lanes)
        return STRUCT.pack(MAGIC, VERSION, kind, op, encoding, lanes, job, 0, token, 0, 1)[:PREFIX_BYTES]

    def _owned(self, prefix: bytes, number: int) -> bytes:
        """With the owner that block ``number`` has."""
        return prefix[: OWNER.start] + self._owner.get(number, 0).to_bytes(2) + prefix[OWNER.stop :]

    def low(self, token: int, rank: int) -> list[int]:
        """By shard, the first block whose result has not come in this epoch."""
        return self._tracks[token].low[rank]

    def most_sent(self) -> int:
        """How often the block that was sent most was sent, by one rank in one epoch."""
        return max((max(track.sent.values(), default=0) for track in self._tracks.values()), default=0)

    def name(self, shard: int, data: Bytes, size: int) -> str:
        """The blocks (the job's numbers) in a batch."""
        raw, near, slots = data.tobytes(), self._world.first // self._world.shards, self._world.lease.slots
        places = [PLACE.unpack_from(raw, at + PREFIX_BYTES) for at in range(0, len(raw), size)]
        blocks = [Lease(slot & -slots, slots).block_at(slot, generation, near) for slot, generation in places]
        return ", ".join(str(block * self._world.shards + shard) for block in blocks)

    def sent(self, rank: int, shard: int, token: int, data: Bytes, size: int) -> None:
        """``rank``, in the epoch of ``token``, sends."""
        track, raw, shards = self._tracks[token], data.tobytes(), self._world.shards
        lease = track.leases[shard]
        window, slots = lease.window, lease.slots
        for at in range(0, len(raw), size):
            block = _block(raw, at, track.next[rank][shard], track.leases[shard])
            number = block * shards + shard
            op = self._op[number]
            want = self._owned(track.contribution[op], number)
            assert raw[at : at + PREFIX_BYTES] == want, f"a wrong header for block {number}"
            payload = raw[at + HEADER_BYTES : at + size]
            assert payload == self._world.expected.up[rank, number], f"rank {rank} sends other values for {number}"
            track.sent[rank, number] += 1
            if block < track.next[rank][shard]:
                self.resent += 1
                assert block >= max(track.starts[shard], track.next[rank][shard] - slots), "a block from long ago"
                continue
            assert block == track.next[rank][shard], f"rank {rank} sends block {block} of shard {shard} out of order"
            assert block - window < track.low[rank][shard], f"rank {rank} sends {block} beyond its window"
            # Then nobody can need the slot any more: the proof's conclusion, checked on its own.
            for low in track.low:
                assert block - slots < low[shard], f"rank {rank} reuses a slot that somebody needs, for {block}"
            track.next[rank][shard] = block + 1

    def got(self, rank: int, shard: int, token: int, data: Bytes, size: int) -> list[int]:
        """``rank`` gets; the job's numbers of the blocks whose results of this epoch are among it, as they come."""
        track, raw, shards = self._tracks[token], data.tobytes(), self._world.shards
        low, numbers = track.low[rank], list[int]()
        beyond = track.beyond.setdefault((rank, shard), set())
        for at in range(0, len(raw), size):
            prefix = raw[at : at + PREFIX_BYTES]
            kind, op = track.answers.get(prefix[: OWNER.start] + b"\0\0" + prefix[OWNER.stop :], (None, None))
            if kind is None:
                continue
            block = _block(raw, at, track.next[rank][shard], track.leases[shard])
            number = block * shards + shard
            if prefix != self._owned(prefix, number):
                continue  # a bit of it has flipped
            assert op is self._op[number]
            alone = self._owner.get(number, rank + 1) != rank + 1
            if (kind is Kind.ACK) is not alone:
                assert self._flips, f"{number} came to another than its owner"
                continue  # a bit of the owner has flipped on the way to the switch, and back on the way from it
            down = b"" if alone else self._world.expected.down[number]
            assert raw[at + HEADER_BYTES : at + size] == down, f"{number} is not the sum"
            assert block < track.next[rank][shard], "a result without one's own contribution"
            numbers.append(number)
            if block >= low[shard]:
                beyond.add(block)
        while low[shard] in beyond:
            beyond.remove(low[shard])
            low[shard] += 1
        return numbers


def _block(raw: bytes, at: int, near: int, lease: Lease) -> int:
    slot, generation = PLACE.unpack_from(raw, at + PREFIX_BYTES)
    assert lease.contains(slot)
    return lease.block_at(slot, generation, near)
