"""A worker's side of the protocol, written from the text of protos/README.md alone.

It imports nothing of inagg: it is what somebody else would write, in the most literal way, to show that the text is
enough. Numbers are exact fractions; nothing here is fast.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

# --- datagram -------------------------------------------------------------------------------------------------

HEADER = struct.Struct(">HBBBBHHHIII")
CONTRIBUTION, RESULT, NOTICE, ACK = 1, 2, 3, 4
SUM, MAX = 1, 2
NAT8, NAT4, TERN, DITH8, FIX32, INT4, INT8, INT16, SCALE8 = range(1, 10)
BITS = {NAT8: 8, NAT4: 4, TERN: 2, DITH8: 8, FIX32: 32, INT4: 4, INT8: 8, INT16: 16, SCALE8: 8}
CARRIED = {
    (CONTRIBUTION, SUM): {NAT8, NAT4, TERN, DITH8, FIX32, INT16},
    (RESULT, SUM): {NAT8, NAT4, DITH8, FIX32, INT4, INT8, INT16},
    (NOTICE, SUM): set(range(1, 9)),
    (ACK, SUM): {NAT8, NAT4, DITH8, FIX32, INT4, INT8, INT16},
    (CONTRIBUTION, MAX): {SCALE8},
    (RESULT, MAX): {SCALE8},
    (NOTICE, MAX): {SCALE8},
}
REASONS = {*range(1, 15), *range(32, 44)}


@dataclass(frozen=True)
class Header:
    """The fields between magic and version, and the lanes."""

    kind: int
    op: int
    format: int
    lanes: int
    job: int
    owner: int
    token: int
    slot: int
    generation: int


def build(header: Header, payload: bytes) -> bytes:
    h = header
    packed = HEADER.pack(0x494E, 1, h.kind, h.op, h.format, h.lanes, h.job, h.owner, h.token, h.slot, h.generation)
    return packed + payload


def parse(data: bytes) -> tuple[Header, bytes] | int:
    """Header and payload, or the number of the first reason to refuse the datagram."""
    if len(data) < 24:
        return 1
    magic, version, *rest = HEADER.unpack(data[:24])
    h, payload = Header(*rest), data[24:]
    carried = CARRIED.get((h.kind, h.op), set())
    bare = h.kind in (NOTICE, ACK)
    if h.kind == NOTICE:
        owner_fits = h.owner in REASONS
    elif h.op == MAX:
        owner_fits = h.owner == 0
    else:
        owner_fits = h.owner <= 32768 and not (h.kind == ACK and h.owner == 0)
    want = h.lanes * BITS.get(h.format, 0) // 8
    refusals = (
        (2, magic != 0x494E),
        (3, version != 1),
        (4, h.kind not in (1, 2, 3, 4)),
        (5, h.op not in (1, 2)),
        (6, h.format not in carried),
        (7, h.lanes != 0 if bare else h.lanes == 0 or h.lanes % 8 != 0),
        (8, not owner_fits),
        (9, h.job == 0),
        (10, h.token == 0),
        (11, h.slot >= 1 << 24),
        (12, h.generation == 0 or h.generation >= 1 << 31),
        (13, len(payload) < want),
        (14, len(payload) > want),
    )
    return next((number for number, refused in refusals if refused), 0) or (h, payload)


def pack(encoding: int, codes: list[int]) -> bytes:
    bits, number = BITS[encoding], 0
    for code in codes:
        number = number << bits | code
    return number.to_bytes(len(codes) * bits // 8, "big")


def unpack(encoding: int, payload: bytes) -> list[int]:
    bits, number = BITS[encoding], int.from_bytes(payload, "big")
    lanes = len(payload) * 8 // bits
    return [number >> (lanes - 1 - i) * bits & (1 << bits) - 1 for i in range(lanes)]


# --- job formats ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobFormat:
    """One row of the table, for n workers."""

    up: int
    down: int
    top: int
    result_shift: int
    f: int
    refined: bool
    down_highest: int

    @property
    def natural(self) -> bool:
        return self.up in (NAT8, NAT4)


def ceil_log2(n: int) -> int:
    c = 0
    while 1 << c < n:
        c += 1
    return c


def job_format(name: str, n: int) -> JobFormat:
    c = ceil_log2(n)
    return {
        "nat8": JobFormat(NAT8, NAT8, 1 << (30 - c), 0, 30 - c, False, 31),
        "nat4": JobFormat(NAT4, NAT4, 64, c, 6, False, 7),
        "nat4-nat8": JobFormat(NAT4, NAT8, 64, 0, 6, False, 7 + c),
        "tern": JobFormat(TERN, INT4 if n <= 7 else INT8, 1, 0, 9, True, n),
        "dith8": JobFormat(DITH8, DITH8, 127, c, 16, True, 127),
        "dith8-exact": JobFormat(DITH8, INT16, 127, 0, 16, True, n * 127),
        "fix32": JobFormat(FIX32, FIX32, 1 << (30 - c), 0, 30 - c, False, n << (30 - c)),
        "nat8-reencode": JobFormat(NAT8, NAT8, 1 << (28 - c), 0, 28 - c, False, 31),
        "nat4-reencode": JobFormat(NAT4, NAT4, 64, c + 1, 6, False, 7),
    }[name]


def scale_lanes(fmt: JobFormat, lanes: int) -> int:
    return min(lanes, lanes * BITS[fmt.up] // 8, 1448) // 8 * 8


# --- floats ---------------------------------------------------------------------------------------------------

FLOATS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}
"""Bits of exponent and mantissa."""
SMALLEST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}


def value_of(bits: int, float_type: str) -> tuple[bool, Fraction | None]:
    """Sign and magnitude of a float; None for infinity and NaN."""
    exponent_bits, mantissa_bits = FLOATS[float_type]
    negative = bits >> (exponent_bits + mantissa_bits) == 1
    exponent = bits >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = bits & (1 << mantissa_bits) - 1
    if exponent == (1 << exponent_bits) - 1:
        return negative, None
    if exponent:
        mantissa += 1 << mantissa_bits
    return negative, mantissa * Fraction(2) ** (SMALLEST[float_type] + max(exponent, 1) - 1)


def nearest(value: Fraction, float_type: str) -> int:
    """The bits of a float: to nearest, ties to even; infinity beyond the range."""
    exponent_bits, mantissa_bits = FLOATS[float_type]
    sign = (value < 0) << (exponent_bits + mantissa_bits)
    value = abs(value)
    least = SMALLEST[float_type]
    step = max(least, floor_log2(value) - mantissa_bits) if value else least
    count = round(value / Fraction(2) ** step)  # Python rounds ties to even
    # The bit patterns of one sign are in order: each step up is one more, into the next exponent as well.
    bits = ((step - least) << mantissa_bits) + count
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    return int(sign | min(bits, infinity))


def not_a_number(float_type: str) -> int:
    return {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}[float_type]


def floor_log2(y: Fraction) -> int:
    e = y.numerator.bit_length() - y.denominator.bit_length()
    return e if Fraction(2) ** e <= y else e - 1


# --- scale rounds ---------------------------------------------------------------------------------------------


def largest(fmt: JobFormat, values: list[int], float_type: str) -> Fraction | None:
    """R: what the scale must reach; None if a value is not finite."""
    magnitudes = [value_of(bits, float_type)[1] for bits in values]
    if None in magnitudes:
        return None
    a = max(m for m in magnitudes if m is not None)
    return a * 128 / 127 if fmt.up == DITH8 else a


def scale_byte(fmt: JobFormat, values: list[int], float_type: str) -> int:
    r = largest(fmt, values, float_type)
    if r is None:
        return 255
    if r == 0:
        return 0
    s = floor_log2(r)
    if Fraction(2) ** s < r:
        s += 1
    s = max(s, -119)
    if not fmt.refined:
        s = max(s, SMALLEST[float_type] + fmt.f)
    return 255 if s > 129 else s + 120


def refinement_byte(fmt: JobFormat, values: list[int], float_type: str, own: int, agreed: int) -> int:
    if agreed == 0 or agreed > 249 or agreed > own:
        return 0
    r = largest(fmt, values, float_type)
    assert r is not None
    return max(0, -(-r // Fraction(2) ** (agreed - 120 - 9)) - 257)


def unit(fmt: JobFormat, agreed: int, q: int = 0) -> Fraction | None:
    """The unit; 0 for a block of zeros, None for one that is NaN on all workers."""
    if agreed == 0:
        return Fraction(0)
    if agreed > 249:
        return None
    m = 257 + q if fmt.refined else 1
    return m * Fraction(2) ** (agreed - 120 - fmt.f)


# --- noise and encoding ---------------------------------------------------------------------------------------

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M64
    return z ^ (z >> 31)


def key(seed: int, rank: int, block: int) -> tuple[int, int]:
    z = mix(seed * 2**32 + rank + 0x9E3779B97F4A7C15 & M64)
    z = mix(z ^ block)
    return z & M32, z >> 32


def word(k0: int, k1: int, lane: int, i: int) -> int:
    x = i * 2**16 + 8 * (lane // 32) + lane % 8 + k0 & M32
    x = (x ^ (x >> 16)) * 0x7FEB352D & M32
    x = (x ^ (x >> 15)) + k1 & M32
    x = x * 0x846CA68B & M32
    x = x ^ (x >> 16)
    by = 8 * (lane // 8 % 4)
    return (x << by | x >> 32 - by) & M32


def carries(p: Fraction, k0: int, k1: int, lane: int) -> bool:
    i = 0
    while p > 0:
        p *= 2**32
        t = int(p) + word(k0, k1, lane, i)
        if t != 0xFFFFFFFF:
            return t > 0xFFFFFFFF
        p, i = p - int(p), i + 1
    return False


def encode(fmt: JobFormat, values: list[int], float_type: str, unit_: Fraction | None, k0: int, k1: int) -> list[int]:
    """The codes of one block."""
    if not unit_:  # zero or NaN on all workers
        return [0] * len(values)
    codes = []
    for lane, bits in enumerate(values):
        negative, magnitude = value_of(bits, float_type)
        assert magnitude is not None
        assert magnitude <= fmt.top * unit_
        y = magnitude / unit_
        if not fmt.natural or y < 1:
            level = int(y)
            p = y - level
        else:
            e = floor_log2(y)
            level, p = e + 1, y / 2**e - 1
        level += carries(p, k0, k1, lane)
        width = BITS[fmt.up]
        if fmt.natural:
            codes.append(level | (1 << (width - 1) if negative and level else 0))
        else:
            codes.append((-level if negative else level) & (1 << width) - 1)
    return codes


# --- decoding -------------------------------------------------------------------------------------------------


def integer(encoding: int, code: int, highest: int) -> int | None:
    """The integer of a code; None if it names none. ``highest``: the highest level, or the largest magnitude."""
    half = 1 << (BITS[encoding] - 1)
    if encoding in (NAT8, NAT4):
        level = code % half
        if level > highest:
            return None
        magnitude = 1 << (level - 1) if level else 0
        return -magnitude if code >= half else magnitude
    value = code - 2 * half if code >= half else code
    return value if abs(value) <= highest else None


def decode(fmt: JobFormat, codes: list[int], float_type: str, unit_: Fraction | None) -> list[int]:
    """The bits of the sums that a result stands for."""
    if unit_ is None:
        return [not_a_number(float_type)] * len(codes)
    integers = [integer(fmt.down, code, fmt.down_highest) or 0 for code in codes]
    return [nearest(i * (1 << fmt.result_shift) * unit_, float_type) for i in integers]


# --- slots ----------------------------------------------------------------------------------------------------


def place(base: int, slots: int, block: int) -> tuple[int, int]:
    """Slot and generation of a block."""
    return base + block % slots, 1 + block // slots % (2**31 - 1)
