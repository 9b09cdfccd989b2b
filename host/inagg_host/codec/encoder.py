"""Floats to payloads: `inagg_wire.codec.encode` for many blocks at a time, written straight into the datagrams."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from inagg_link.jit import by_types, fused, inline, jit
from inagg_wire.layout import HEADER_BYTES, Encoding
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_ZERO

from .bits import (
    LIFT,
    U8,
    U32,
    U64,
    Array,
    as_float,
    block_key,
    largest_magnitude,
    lift,
    magnitude_of,
    noise_words,
    power_of_two,
    swapped,
    widen_bfloat,
    widen_half,
)
from .coding import Fixed, Linear, Natural
from .decoder import decode_payload
from .drafts import BELOW, LARGEST, LOWEST, NOBODYS, NUMBER, SERIAL, UNIT, Drafts, draft
from .encoder_loops import inverse_of, linear8, linear32, natural, pack
from .exact import FIX32, NAT4, NAT8, exact_code
from .finish import finish
from .own import of_float32

TERN = int(Encoding.TERN)

ALL_GOOD = -1
"""Result of the kernels if no block is bad."""

LIFT_BELOW = SCALE_BIAS - 64
"""Blocks of 32 bits or less with a smaller scale byte are scaled by 2**LIFT first. In the others no subnormal float32
matters: units are 2**(-64 - 30) or more, so |x| / unit < 2**(-126 + 94) = 2**-32, and p's top 32 bits are zero."""


# --- by type of the values: bits of float64 as they are, all others as float32 ---


@by_types
def stage(room: Any, block: Any, half: Any, lifted: Any) -> Any:
    """The bits of ``block`` for the loops, and log2 of what they are scaled by. Uses ``room`` if need be."""

    def from16(room: Array, block: Array, half: bool, lifted: bool) -> tuple[Array, int]:
        bits = room[: len(block)]
        if half:
            widen_half(bits, block)
        else:
            widen_bfloat(bits, block)
        if lifted:
            lift(bits, bits)
        return bits, LIFT if lifted else 0

    def from32(room: Array, block: Array, half: bool, lifted: bool) -> tuple[Array, int]:
        if not lifted:
            return block, 0
        bits = room[: len(block)]
        lift(bits, block)
        return bits, LIFT

    def from64(room: Array, block: Array, half: bool, lifted: bool) -> tuple[Array, int]:
        return block, 0

    return {16: from16, 32: from32, 64: from64}[block.dtype.bitwidth]


# --- by family of the format ---


@by_types
def round_block(job: Any, out: Any, bits: Any, noise: Any, unit: Any) -> Any:
    """Codes to ``out``, one or (fix32) four bytes a lane. ``unit``: its mantissa and exponent. Returns as the loops."""
    bias = {32: 127, 64: 1023}[bits.dtype.bitwidth]

    def to_natural(job: Any, out: Array, bits: Array, noise: Array, unit: tuple[int, int]) -> Any:
        return natural(out, bits, noise, unit[1] + bias, 8 if job.encoding == NAT4 else 128)

    def to_linear(job: Any, out: Array, bits: Array, noise: Array, unit: tuple[int, int]) -> tuple[Any, Any]:
        return linear8(out, bits, noise, power_of_two(32 - unit[1]), inverse_of(unit[0]))

    def to_fixed(job: Any, out: Array, bits: Array, noise: Array, unit: tuple[int, int]) -> tuple[Any, Any]:
        return linear32(out.view(np.uint32), bits, noise, power_of_two(-unit[1]))

    return {Natural: to_natural, Linear: to_linear, Fixed: to_fixed}[job.instance_class]


@partial(by_types, forceinline=True)
def from_draft(
    job: Any, out: Any, bits: Any, exponent: Any, k0: Any, k1: Any, number: Any, row: Any, drafts: Any, serial: Any,
    noise: Any, codes: Any, own: Any,
) -> Any:  # fmt: skip
    """Finish the draft that is in ``out``, which is of ``row``, or make one and finish it; what the codes stand for
    goes to ``own``, unless that is empty. Returns as the loops, and whether all is done; if not, the former may be
    anything."""

    def as_float32(
        job: Any, out: Array, bits: Array, exponent: int, k0: Any, k1: Any, number: int, row: int, drafts: Any,
        serial: int, noise: Array, codes: Array, own: Array,
    ) -> tuple[Any, Any, bool]:  # fmt: skip
        if job.encoding == NAT4:  # with so few levels much is below the unit
            return U32(0), U32(0), False
        field = exponent + 127
        if len(drafts.notes) > 0:
            note, below = drafts.notes[row], drafts.below[row]
            drafts.expected[0] = field
            if note[SERIAL] == serial and note[NUMBER] == number:
                note[SERIAL] = NOBODYS
                by, lowest, renew = field - int(note[UNIT]), int(note[LOWEST]), int(note[BELOW])
                tie, done = finish(out, bits, by, lowest, renew, below, field, k0, k1, noise, own)
                return U32(note[LARGEST]), tie, done
        largest, lowest, renew = draft(out, bits, field, k0, k1, codes, own, False)
        tie, done = finish(out, bits, 0, lowest, renew, codes, field, k0, k1, noise, own)
        return largest, tie, done

    def never(
        job: Any, out: Array, bits: Array, exponent: int, k0: Any, k1: Any, number: int, row: int, drafts: Any,
        serial: int, noise: Array, codes: Array, own: Array,
    ) -> tuple[Any, Any, bool]:  # fmt: skip
        return magnitude_of(bits[0]), U32(0), False

    return as_float32 if job.instance_class is Natural and bits.dtype.bitwidth == 32 else never


@jit
def round_exactly(job: Any, out: Array, bits: Array, unit: tuple[int, int], k0: Any, k1: Any) -> None:
    """The same, lane by lane and with all noise words."""
    width = 8 * bits.itemsize
    for lane in range(len(bits)):
        code = exact_code(job.encoding, U64(bits[lane]), width, 23 if width == 32 else 52, unit, lane, k0, k1)
        if job.encoding == FIX32:
            out.view(np.uint32)[lane] = swapped(U32(code))
        else:
            out[lane] = U8(code)


@fused
def encode_payload(
    job: Any, payload: Array, block: Array, scale: int, refinement: int, number: int, row: int, drafts: Drafts,
    serial: int, room: Array, noise: Array, codes: Array, own: Array,
) -> tuple[bool, bool]:  # fmt: skip
    """One block, with its agreed bytes. Returns whether they reach its values, and whether ``own`` has what the codes
    stand for."""
    if scale == SCALE_ZERO or scale > SCALE_BYTE_MAX:
        payload[:] = 0
        return scale != SCALE_ZERO or largest_magnitude(block) == 0, False
    packed = job.encoding == NAT4 or job.encoding == TERN
    lane_bytes = 4 if job.encoding == FIX32 else 1
    bits, lifted_by = stage(room, block, job.half, scale < LIFT_BELOW)
    exponent = scale - SCALE_BIAS - job.fraction_bits + lifted_by
    unit = (257 + refinement if job.refined else 1, exponent)
    out = codes if packed else payload
    used = len(bits) * lane_bytes
    k0, k1 = block_key(job.seed, job.worker, number)
    largest, tie, done = magnitude_of(bits[0]), U32(0), False
    drafted, whole = of_float32(own, noise)
    if lifted_by == 0:  # drafts are of values as they are
        largest, tie, done = from_draft(
            job, out[:used], bits, exponent, k0, k1, number, row, drafts, serial, noise, codes, drafted
        )
    if not done:
        noise_words(noise, len(bits), k0, k1)
        largest, tie = round_block(job, out[:used], bits, noise, unit)
    top = 1 << (job.top - 1) if job.encoding == NAT8 or job.encoding == NAT4 else job.top
    # Not "greater": that would let NaN pass.
    if not np.float64(as_float(largest)) <= float(top * unit[0]) * power_of_two(exponent):
        return False, False
    if tie != 0:
        round_exactly(job, out[:used], bits, unit, k0, k1)
    out[used : job.lanes * lane_bytes] = 0
    if packed:
        pack(payload, codes, job.encoding == NAT4)
    return True, done and tie == 0 and whole


@inline
def encode(
    job: Any,
    values: Array,
    first: int,
    number: int,
    step: int,
    count: int,
    scales: Array,
    refinements: Array,
    datagrams: Array,
    row: int,
    room: Array,
    codes: Array,
    drafts: Drafts,
    serial: int,
    contributed: Array,
) -> int:
    """Write the payloads of ``count`` blocks of ``values`` (bits), ``first`` and every ``step``-th after it, with
    numbers that go up likewise from ``number``, into the rows of ``datagrams`` from ``row`` on; headers stay as they
    are. ``job``: a `Coding`.

    ``scales``, ``refinements``: the agreed bytes of all blocks. A block without a unit (agreed scale 0, or 250 and
    above) becomes zero codes. ``drafts``: of the rows of ``datagrams``, those of other operations than ``serial`` not
    for use. ``contributed``: bits of what the codes stand for, of all blocks, or empty. ``room`` (uint32, twice
    `padded` lanes) and ``codes`` (uint8, `padded` lanes): for use inside.

    Returns `ALL_GOOD`; or the first i for whose block the agreed bytes do not reach the values (or these are not
    finite): then rows from i on are not written, or hold nothing of use. Bytes that are the maximum of all workers'
    reach them. So the switch is at fault, or somebody changed the values since their scales were found.
    """
    lanes = job.lanes
    room, noise = room[: len(codes)], room[len(codes) :]
    for i in range(count):
        at = first + i * step
        begin, end = at * lanes, min((at + 1) * lanes, len(values))
        own, payload = contributed[begin:end], datagrams[row + i, HEADER_BYTES : HEADER_BYTES + job.payload_bytes]
        scale, refinement = int(scales[at]), int(refinements[at])
        good, written = encode_payload(
            job, payload, values[begin:end], scale, refinement, number + i * step, row + i, drafts, serial, room, noise,
            codes, own,
        )  # fmt: skip
        if not good:
            return i
        if len(own) > 0 and not written:
            decode_payload(job, own, payload, scale, refinement, 1, room, codes, False)
    return ALL_GOOD
