"""The one table of offsets: header fields, enumerations and payload encodings.

The scalar codec, the batch codec, the scapy layer, the Wireshark dissector and the tests are derived from
what stands here; `protos/README.md` states the same for people who write a client of their own, and a test
compares the two.

Why these sizes. All fields are whole bytes at their natural alignment, so that a Tofino parser extracts them
into 8-, 16- and 32-bit containers without shifting; everything that a switch must check stands in the first
20 bytes and fits one ternary key. The header is 24 bytes, so the lanes stay 8-byte aligned in the UDP
payload, and a 1500-byte frame (1472 bytes of UDP payload) carries 1448 one-byte lanes: 28 + 24 bytes of
1500, 3.5 %, are headers. As lanes come in eights, only a header of 16 bytes or less would carry more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

MAGIC: Final = 0x494E  # "IN"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Field:
    """One header field: ``offset`` and ``size`` in bytes, an unsigned big-endian integer."""

    name: str
    offset: int
    size: int
    meaning: str

    @property
    def max(self) -> int:
        """The largest value that the field can hold."""
        return (1 << (8 * self.size)) - 1


FIELDS: Final[tuple[Field, ...]] = (
    Field("magic", 0, 2, 'always 0x494E, "IN"'),
    Field("version", 2, 1, "version of this format: 1"),
    Field("kind", 3, 1, "1 contribution, 2 result, 3 error notice, 4 acknowledgement"),
    Field("op", 4, 1, "1 SUM, 2 MAX"),
    Field("format", 5, 1, "how the payload encodes its lanes"),
    Field("lanes", 6, 2, "lanes in the payload, a multiple of 8; 0 in an error notice or an acknowledgement"),
    Field("job", 8, 2, "the job, from the control service; never 0"),
    Field("owner", 10, 2, "1 + the only rank that gets the result, 0: all get it; in an error notice: the reason"),
    Field("token", 12, 4, "the job's secret of this epoch; never 0"),
    Field("slot", 16, 4, "the switch's slot that this block uses"),
    Field("generation", 20, 4, "which use of the slot this is, from 1"),
)
HEADER_BYTES: Final = 24

# Neither holes nor overlaps, every field at its natural alignment.
assert all(a.offset + a.size == b.offset for a, b in pairwise(FIELDS))
assert FIELDS[0].offset == 0 and FIELDS[-1].offset + FIELDS[-1].size == HEADER_BYTES
assert all(f.offset % f.size == 0 for f in FIELDS) and HEADER_BYTES % 8 == 0


class Kind(IntEnum):
    """Kind of a datagram."""

    CONTRIBUTION = 1  # worker to switch
    RESULT = 2  # switch to worker
    NOTICE = 3  # switch to worker: your contribution was refused, and why
    ACK = 4  # switch to worker: the sum is complete, and its result went to its owner


class Op(IntEnum):
    """Operation of the switch on the lanes of a slot."""

    SUM = 1
    MAX = 2


class Encoding(IntEnum):
    """Encoding of the lanes of a payload (the header's ``format`` field).

    Lanes narrower than a byte are packed first lane in the most significant bits, the order in which a P4
    parser extracts them. Integers are two's complement, big-endian.
    """

    NAT8 = 1  # sign bit, 7-bit level
    NAT4 = 2  # sign bit, 3-bit level
    TERN = 3  # -1, 0, 1
    DITH8 = 4  # -127..127
    FIX32 = 5
    INT4 = 6  # -7..7, the exact sum of up to 7 ternary workers
    INT8 = 7  # -127..127, the exact sum of more
    INT16 = 8  # an exact sum
    SCALE8 = 9  # a scale byte, for MAX


LANE_BITS: Final[dict[Encoding, int]] = {
    Encoding.NAT8: 8,
    Encoding.NAT4: 4,
    Encoding.TERN: 2,
    Encoding.DITH8: 8,
    Encoding.FIX32: 32,
    Encoding.INT4: 4,
    Encoding.INT8: 8,
    Encoding.INT16: 16,
    Encoding.SCALE8: 8,
}

SIGN_AND_LEVEL: Final = frozenset({Encoding.NAT8, Encoding.NAT4})
"""Encodings whose codes are a sign bit and the index of a power of two."""

LANE_MULTIPLE: Final = 8
"""Lane counts are multiples of this: then two bits a lane still end on a byte, and lanes fill the groups of
four that share the switch's noise."""

LANE_COUNT_MAX: Final = 65528
"""The largest multiple of 8 in the ``lanes`` field. A lane number fits 16 bits, which the noise relies on."""
assert LANE_COUNT_MAX % LANE_MULTIPLE == 0 and LANE_COUNT_MAX + LANE_MULTIPLE > 0xFFFF

CARRIED: Final[dict[tuple[Kind, Op], frozenset[Encoding]]] = {
    (Kind.CONTRIBUTION, Op.SUM): frozenset(
        # INT16 from a switch alone: a partial sum.
        {Encoding.NAT8, Encoding.NAT4, Encoding.TERN, Encoding.DITH8, Encoding.FIX32, Encoding.INT16}
    ),
    (Kind.CONTRIBUTION, Op.MAX): frozenset({Encoding.SCALE8}),
    (Kind.RESULT, Op.SUM): frozenset(Encoding) - {Encoding.TERN, Encoding.SCALE8},
    (Kind.RESULT, Op.MAX): frozenset({Encoding.SCALE8}),
    # An acknowledgement has no payload; it has the format of the result that it stands for.
    (Kind.ACK, Op.SUM): frozenset(Encoding) - {Encoding.TERN, Encoding.SCALE8},
    (Kind.ACK, Op.MAX): frozenset(),
    # A notice has no payload; it repeats the op and format of what it refuses.
    (Kind.NOTICE, Op.SUM): frozenset(Encoding) - {Encoding.SCALE8},
    (Kind.NOTICE, Op.MAX): frozenset({Encoding.SCALE8}),
}

SLOT_COUNT_MAX: Final = 1 << 24
"""Slots are numbered below this; the fast switch indexes its accumulators with slot * lanes in 64 bits."""

OWNER_MAX: Final = 1 << 15
"""Largest owner: the last rank of the largest job, plus 1."""

BARE: Final = frozenset({Kind.NOTICE, Kind.ACK})
"""Kinds without lanes."""

GENERATION_MAX: Final = (1 << 31) - 1
"""The last generation. Signed and unsigned compares agree up to it, and no register action ever has to
return all ones, which Tofino's cannot."""

UDP_PAYLOAD_BYTES_1500: Final = 1500 - 20 - 8
"""UDP payload of a 1500-byte IPv4 packet without options."""

UDP_PAYLOAD_BYTES_MAX: Final = 65535 - 20 - 8
"""UDP payload of the largest IPv4 packet."""

UDP_PAYLOAD_BYTES_BATCH: Final = 65536 - 14 - 40 - 8
"""Bytes that a device takes at once (Linux, GSO_LEGACY_MAX_SIZE), without the headers of Ethernet, IPv6 and UDP. A
batch for IPv6 that has more is cut into its datagrams by the kernel, and received one by one: 64 MiB then take half as
long again."""

UDP_PAYLOAD_BYTES_LOOPBACK: Final = UDP_PAYLOAD_BYTES_BATCH // 5
"""Payload of datagrams that never leave the machine, where the MTU is 65536: five fill what one system call takes.
Measured for an all-reduce of 64 MiB of float32 between four workers: a fifth less processor time than datagrams for
frames of 1500 bytes need. Larger ones save little more, and every block that is lost, or not full, costs more."""


CONTROL_PORT: Final = 47100
"""The TCP port of a switch's control service unless told otherwise."""

DATA_PORT: Final = 47101
"""The UDP port of a switch's first shard unless told otherwise; the others take the next ones. Workers learn the real
ports from the control service; dissectors take this one where they must guess."""


def payload_bytes(encoding: Encoding, lanes: int) -> int:
    """Bytes that ``lanes`` lanes take in ``encoding``; ``lanes`` is a multiple of 8."""
    return lanes * LANE_BITS[encoding] // 8


def datagram_bytes(encoding: Encoding, lanes: int) -> int:
    """Bytes of the UDP payload: header and lanes."""
    return HEADER_BYTES + payload_bytes(encoding, lanes)
