"""Job formats: which encodings a job sends and gets, what its levels are worth, and how many lanes fit.

A *level* is the integer that a code stands for on the switch. Levels of all workers share one *unit* per
scale block, so that the sum of levels is the sum of values divided by that unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from .errors import AdmissionError
from .layout import (
    HEADER_BYTES,
    LANE_BITS,
    LANE_COUNT_MAX,
    LANE_MULTIPLE,
    UDP_PAYLOAD_BYTES_1500,
    Encoding,
    Op,
    datagram_bytes,
    payload_bytes,
)

CHILDREN_MAX: Final = 32
"""Most children of one switch in one job, workers or switches below it: one bit each in a 32-bit bitmap."""

WORKERS_MAX: Final = CHILDREN_MAX**3
"""The world size of a job: what three levels of switches hold."""

ACCUMULATOR_MAX: Final = (1 << 31) - 1

SCALE_LANES_MAX: Final = UDP_PAYLOAD_BYTES_1500 - HEADER_BYTES
"""Lanes of the largest MAX block. Where blocks of values are larger, a tensor has few of them, and so few scales; and
each tensor, however small, has a MAX block."""

NAT4_LEVELS: Final = 7
DITH8_TOP: Final = 127


def ceil_log2(n: int) -> int:
    """The smallest c with 2**c >= n, for n >= 1."""
    return (n - 1).bit_length()


INTEGER_MAX: Final = {
    Encoding.INT4: 7,
    Encoding.INT8: 127,
    Encoding.DITH8: 127,
    Encoding.INT16: (1 << 15) - 1,
    Encoding.FIX32: ACCUMULATOR_MAX,
}
"""The largest magnitude of what is plainly an integer in two's complement."""
EXACT: Final = (Encoding.INT4, Encoding.INT8, Encoding.INT16, Encoding.FIX32)
"""Encodings of exact sums, the narrowest first."""


class Family(Enum):
    """The arithmetic behind a format."""

    NATURAL = "natural"  # levels are powers of two
    LINEAR = "linear"  # levels are multiples of the unit


@dataclass(frozen=True, slots=True)
class JobFormat:
    """A job format, which a user chooses by name. See `protos/README.md`, "Number formats".

    ``refined``: the scale is made finer by a second MAX round (linear formats whose noise grows with it).
    ``reduced``: the sum is rounded again on the way down, else the result is the exact sum.
    ``roundings``: how many switches below the root of a tree may round a sum on its way up, which they then send as
    workers do (``up``); 0 if they send it exactly. Levels and window leave room for what so many may round up.
    """

    name: str
    family: Family
    up: Encoding
    down_encoding: Encoding
    refined: bool
    reduced: bool
    meaning: str
    roundings: int = 0

    def down(self, workers: int) -> Encoding:
        """The encoding of results for ``workers`` workers (1 to `WORKERS_MAX`)."""
        if self.reduced:
            return self.down_encoding
        # The narrowest that holds the exact sum, from the declared one on.
        wider = EXACT[EXACT.index(self.down_encoding) :]
        return next(encoding for encoding in wider if workers * self.top(workers) <= INTEGER_MAX[encoding])

    def encoding(self, op: Op) -> Encoding:
        """The encoding of a contribution with ``op``."""
        return self.up if op is Op.SUM else Encoding.SCALE8

    def result_encoding(self, op: Op, workers: int) -> Encoding:
        """The encoding of a result with ``op`` for ``workers`` workers."""
        return self.down(workers) if op is Op.SUM else Encoding.SCALE8

    def partial(self, op: Op, workers: int) -> Encoding:
        """The encoding of partial sums between switches, of a job with ``workers`` workers in all: the narrowest
        integer that holds the whole sum, of those that contributions can have; for MAX, or if switches round sums, as
        workers send it."""
        if op is Op.MAX or self.roundings:
            return self.encoding(op)
        exact = (Encoding.DITH8, Encoding.INT16, Encoding.FIX32)
        return next(encoding for encoding in exact if workers * self.top(workers) <= INTEGER_MAX[encoding])

    def parts(self, workers: int, lanes: int, datagram_limit_bytes: int = UDP_PAYLOAD_BYTES_1500) -> int | None:
        """Number of datagrams, a power of two, in which a block of ``lanes`` lanes goes from switch to switch, so that
        each fits ``datagram_limit_bytes`` of UDP payload; None if it cannot be cut so (see `tree_lanes`)."""
        bits, parts = max(LANE_BITS[self.partial(Op.SUM, workers)], LANE_BITS[self.down(workers)]), 1
        while HEADER_BYTES + lanes // parts * bits // 8 > datagram_limit_bytes:
            parts *= 2
        whole = all(self.lanes_for(op, lanes) % (LANE_MULTIPLE * parts) == 0 for op in Op)
        return parts if whole else None

    def tree_lanes(self, workers: int, most: int, datagram_limit_bytes: int = UDP_PAYLOAD_BYTES_1500) -> int:
        """The most lanes, up to ``most``, of a block that can be cut into `parts`; 0 if there are none."""
        lanes = range(most // LANE_MULTIPLE * LANE_MULTIPLE, self.min_lanes - 1, -LANE_MULTIPLE)
        return next((n for n in lanes if self.parts(workers, n, datagram_limit_bytes) is not None), 0)

    def levels(self, workers: int) -> int:
        """Number of magnitudes above zero that a contribution can have."""
        if self.up is Encoding.NAT8:
            # The top level is 2^(L-1) = 2^(30-c) units, and n * 2^(30-c) <= 2^30 < 2^31 as n <= 2^c. A switch that
            # rounds a sum at most doubles it, so each such level of switches costs one level of the format.
            return 31 - ceil_log2(workers) - self.roundings
        if self.up is Encoding.NAT4:
            return NAT4_LEVELS
        return self.top(workers)

    def top(self, workers: int) -> int:
        """The integer of the top level, in units. ``workers * top << roundings`` never exceeds ``ACCUMULATOR_MAX``:
        2^30 for nat8 and fix32 (see `levels`), `WORKERS_MAX` * 127 and less for the others."""
        if self.family is Family.NATURAL:
            return 1 << (self.levels(workers) - 1)
        if self.up is Encoding.FIX32:
            return 1 << (30 - ceil_log2(workers))
        return DITH8_TOP if self.up is Encoding.DITH8 else 1

    def result_shift(self, workers: int) -> int:
        """log2 of what one unit of a result is worth in units of a contribution.

        nat4 and dith8 results have no more levels than contributions, so their window moves up by
        c = ceil(log2 n): their top, 2^c * top, is at least n * top; and by ``roundings`` more, as in `levels`.
        """
        return ceil_log2(workers) + self.roundings if self.down(workers) in (Encoding.NAT4, Encoding.DITH8) else 0

    def partial_shift(self, workers: int) -> int:
        """log2 of what one unit of a partial sum between switches is worth in units of a contribution: c for nat4, so
        that the top, 2^c * top, is no less than what the sum of any m of the n workers, m * top, is rounded up to."""
        return self.result_shift(workers) - self.roundings if self.roundings and self.result_shift(workers) else 0

    @property
    def workers_max(self) -> int:
        """The most workers of a job: `WORKERS_MAX`, or fewer where switches round sums to nat4. There, what m workers
        sent must be rounded to 2 * m * top at most, or the sums of all would not fit the window: but any sum, of one
        worker too, may be rounded up to the lowest level, 2^c, so 2^c must be 2 * top at most."""
        return 2 * self.top(1) if self.roundings and self.up is Encoding.NAT4 else WORKERS_MAX

    def result_levels(self, workers: int) -> int:
        """The highest level index (natural) or largest magnitude (linear) that a result can have."""
        down = self.down(workers)
        if down is Encoding.NAT8:
            # n * top may be rounded up to the next power of two, which is at most 2^c * top; and twice as much after
            # each rounding below.
            return (self.top(workers) << ceil_log2(workers) + self.roundings).bit_length()
        if down is Encoding.NAT4:
            return NAT4_LEVELS
        return DITH8_TOP if down is Encoding.DITH8 else workers * self.top(workers)

    def scale_lanes(self, lanes: int) -> int:
        """Lanes of the job's MAX blocks: one byte each, no more bytes than a SUM contribution has, no
        more lanes than a slot has, no more than `SCALE_LANES_MAX`."""
        return min(lanes, payload_bytes(self.up, lanes), SCALE_LANES_MAX) // LANE_MULTIPLE * LANE_MULTIPLE

    def lanes_for(self, op: Op, lanes: int) -> int:
        """Lanes of a block with ``op``, for a job with ``lanes`` lanes."""
        return lanes if op is Op.SUM else self.scale_lanes(lanes)

    @property
    def min_lanes(self) -> int:
        """The fewest lanes of a job: fewer would leave its MAX blocks without any (see `scale_lanes`)."""
        return max(LANE_MULTIPLE, LANE_MULTIPLE * 8 // LANE_BITS[self.up])

    def max_lanes(self, workers: int, datagram_limit_bytes: int = UDP_PAYLOAD_BYTES_1500) -> int:
        """The most lanes whose contribution and result both fit ``datagram_limit_bytes`` of UDP payload.

        Less than `min_lanes`, 0 say, if no job fits.
        """
        bits = max(LANE_BITS[self.up], LANE_BITS[self.down(workers)])
        lanes = max(0, datagram_limit_bytes - HEADER_BYTES) * 8 // bits
        return min(lanes // LANE_MULTIPLE * LANE_MULTIPLE, LANE_COUNT_MAX)


_NAT, _LIN, _E = Family.NATURAL, Family.LINEAR, Encoding
FORMATS: Final = {
    f.name: f
    for f in (
        JobFormat("nat8", _NAT, _E.NAT8, _E.NAT8, False, True, "sign and exponent, 1 byte up and down"),
        JobFormat("nat4", _NAT, _E.NAT4, _E.NAT4, False, True, "sign and 7 levels, 4 bits up and down"),
        JobFormat("nat4-nat8", _NAT, _E.NAT4, _E.NAT8, False, True, "4 bits up, 1 byte down"),
        JobFormat("tern", _LIN, _E.TERN, _E.INT4, True, False, "-1, 0, 1: 2 bits up, the exact sum down"),
        JobFormat("dith8", _LIN, _E.DITH8, _E.DITH8, True, True, "255 even steps, 1 byte up and down"),
        JobFormat("dith8-exact", _LIN, _E.DITH8, _E.INT16, True, False, "1 byte up, the exact sum down"),
        JobFormat("fix32", _LIN, _E.FIX32, _E.FIX32, False, False, "SwitchML's fixed point, 4 bytes, exact sum"),
        JobFormat("nat8-reencode", _NAT, _E.NAT8, _E.NAT8, False, True, "nat8, and 1 byte between switches too", 2),
        JobFormat("nat4-reencode", _NAT, _E.NAT4, _E.NAT4, False, True, "nat4, and 4 bits between switches too", 1),
    )
}
"""Every format a job can have, by name."""

# ``n * top`` is greatest where n is a power of two (nat8, fix32), or where it is largest (the others).
assert all(
    n * f.top(n) << f.roundings <= ACCUMULATOR_MAX for f in FORMATS.values() for n in (1 << c for c in range(16))
)
assert WORKERS_MAX == 1 << 15


def job_format(name: str) -> JobFormat:
    """The format called ``name``; raises `AdmissionError` that lists the names there are."""
    try:
        return FORMATS[name]
    except KeyError:
        raise AdmissionError(f"no format {name!r}; choose one of {', '.join(FORMATS)}") from None


def admit(fmt: JobFormat, workers: int, lanes: int, datagram_limit_bytes: int = UDP_PAYLOAD_BYTES_1500) -> None:
    """Raise `AdmissionError`, saying what would fit, unless a job can run with these numbers.

    A job that passes cannot overflow an accumulator: `JobFormat.top`.
    """
    if not 1 <= workers <= fmt.workers_max:
        raise AdmissionError(f"{workers} workers: a job of {fmt.name} has 1 to {fmt.workers_max}")
    least, most = fmt.min_lanes, fmt.max_lanes(workers, datagram_limit_bytes)
    if most < least:
        raise AdmissionError(
            f"datagrams of {datagram_limit_bytes} bytes are too small: {least} lanes of {fmt.name} need "
            f"{max(datagram_bytes(e, least) for e in (fmt.up, fmt.down(workers)))}"
        )
    if lanes % LANE_MULTIPLE or not least <= lanes <= most:
        raise AdmissionError(
            f"{lanes} lanes: {fmt.name} for {workers} workers in datagrams of up to {datagram_limit_bytes} bytes "
            f"takes a multiple of {LANE_MULTIPLE} from {least} to {most}"
        )
