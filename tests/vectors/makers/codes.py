"""codes.json and decode.json: values to codes, and the codes of results to values."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from tests.vectors.makers import ties

from inagg_wire.codec import decode, encode
from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.layout import LANE_BITS, Encoding
from inagg_wire.noise import host_words
from inagg_wire.noise_keys import BlockKey
from inagg_wire.scale import Floats, FloatType, Unit, scale_byte, unit

from .common import Vector, cast, random_values, to_hex, unit_json

MEANING = (
    "`values` (bit patterns of `float_type`), the `unit` that a scale round agreed on, and the noise key of the "
    "block to the `codes` of a contribution, one unsigned number a lane as its bits stand in the payload. A tie "
    "is where noise word 0 does not decide: `tie_lanes` are the lanes that need word 1, or in the last two vectors "
    "word 2."
)
DECODE_MEANING = (
    "`codes` of a result (of the `format`'s encoding down) and the `unit` to `values`, the sums over all workers,"
    " as bit patterns of `float_type`. A unit of null gives NaN; a mantissa of 0 gives zeros."
)

EDGES = (0.0, -0.0, "top", "-top", "below top", 1.0, -1.0, 1.5, 0.5, -0.5, 2.0, 3.0, -2.75, 0.01, "least", "-least")
"""In units; then the ends of what can be."""


def _edge_values(fmt: JobFormat, workers: int, u: Unit, float_type: FloatType) -> Floats:
    top = float(fmt.top(workers))
    least = 2.0**float_type.value
    ends = {
        "top": top * float(u),
        "-top": -top * float(u),
        "below top": top * (1 - 2.0**-50) * float(u),
        "least": least,
        "-least": -least,
    }
    values = [ends[e] if isinstance(e, str) else max(-top, min(top, e)) * float(u) for e in EDGES]
    return cast(values * (2 if fmt.up is Encoding.TERN else 1), float_type)


def codes_vector(
    what: str, fmt: JobFormat, workers: int, float_type: FloatType, u: Unit, key: BlockKey, values: Floats
) -> Vector:
    """One encoding."""
    codes = encode(values, float_type, fmt, workers, u, lambda i: host_words(key, values.size, i))
    return {
        "what": what,
        "format": fmt.name,
        "workers": workers,
        "float_type": float_type.name.lower(),
        "unit": unit_json(u),
        "key": {"k0": f"{key.k0:08x}", "k1": f"{key.k1:08x}"},
        "values": to_hex(values),
        "codes": codes.tolist(),
    }


def _vectors() -> Iterator[Vector]:
    rng = random.Random(4711)
    for fmt in FORMATS.values():
        if fmt.name in ("nat4-nat8", "dith8-exact"):
            continue  # the same going up
        for float_type in FloatType:
            type_name = float_type.name.lower()
            for workers in (1, 3, 32):
                lanes = 32 if fmt.up is Encoding.TERN else 16
                values = random_values(rng, lanes, float_type, largest=2)
                q = rng.randrange(256) if fmt.refined else 0
                s = scale_byte(fmt, workers, values, float_type) + fmt.refined  # any refinement is then enough
                u = unit(fmt, workers, s, q)
                assert u is not None
                key = BlockKey(rng.getrandbits(32), rng.getrandbits(32))
                common = (fmt, workers, float_type, u, key)
                yield codes_vector(f"{fmt.name}, {workers} workers, {type_name}", *common, values)
                edges = _edge_values(fmt, workers, u, float_type)
                yield codes_vector(f"{fmt.name}, {workers} workers, {type_name}: edges", *common, edges)
    zeros = cast([0.0, -0.0] * 4, FloatType.FLOAT32)
    yield codes_vector("a block of zeros", FORMATS["nat8"], 2, FloatType.FLOAT32, Unit(0, 0), BlockKey(1, 2), zeros)


def make() -> Vector:
    """The content of codes.json."""
    found = [
        codes_vector(t.what, t.fmt, t.workers, t.float_type, t.unit, t.key, t.values) | {"tie_lanes": [t.lane]}
        for t in ties.make()
    ]
    return {"meaning": MEANING, "vectors": [*_vectors(), *found]}


def _result_codes(fmt: JobFormat, workers: int, rng: random.Random) -> list[int]:
    """The edges of what a result can hold, codes that name no level, and any valid codes."""
    down, most = fmt.down(workers), fmt.result_levels(workers)
    bits = LANE_BITS[down]
    sign, mask = 1 << (bits - 1), (1 << bits) - 1
    if down in (Encoding.NAT8, Encoding.NAT4):
        codes = [0, 1, sign | 1, most, sign | most, sign, min(most + 1, sign - 1), mask]
        return codes + [rng.randrange(2) * sign | rng.randrange(most + 1) for _ in range(8)]
    signed = [0, 1, -1, most, -most, -sign, min(most + 1, sign - 1), most // 2]
    return [v & mask for v in signed + [rng.randrange(-most, most + 1) for _ in range(8)]]


def _decodings() -> Iterator[Vector]:
    rng = random.Random(1848)
    for fmt in FORMATS.values():
        for workers in (1, 3, 8, 32):
            for float_type in FloatType:
                scale, q = rng.randrange(110, 126), rng.randrange(256) if fmt.refined else 0
                u = unit(fmt, workers, scale, q)
                codes = _result_codes(fmt, workers, rng)
                what = f"{fmt.name}, {workers} workers, {float_type.name.lower()}"
                yield _decoding(what, fmt, workers, float_type, u, codes)
    nat8, fix32 = FORMATS["nat8"], FORMATS["fix32"]
    for float_type in FloatType:
        of_type = float_type.name.lower()
        yield _decoding(f"NaN in {of_type}", nat8, 2, float_type, None, [0, 1, 30, 0x80, 0x9E, 2, 3, 4])
        yield _decoding(f"a block of zeros in {of_type}", nat8, 2, float_type, Unit(0, 0), [0] * 8)
        top = unit(nat8, 2, 248)
        large = [31, 30, 29, 0x9F, 0x9E, 0x9D, 1, 0]
        yield _decoding(f"beyond float32's range in {of_type}", nat8, 2, float_type, top, large)
        ones = [0x1FFFFFFF, 0x01000001, 0x01000003, 0x00010001, 0x01010000, 0x01018000, 0x01028000, 0x00FFFFFF]
        yield _decoding(f"halfway between two {of_type} values", fix32, 2, float_type, unit(fix32, 2, 120), ones)
        least = unit(fix32, 2, 1)
        small = [1, 2, 3, 4, 5, 0xFFFFFFFF, 1 << 25, 1 << 29]
        yield _decoding(f"fix32 near 2^-119 in {of_type}", fix32, 2, float_type, least, small)


def _decoding(
    what: str, fmt: JobFormat, workers: int, float_type: FloatType, u: Unit | None, codes: list[int]
) -> Vector:
    values = decode(np.array(codes, np.uint32), float_type, fmt, workers, u)
    return {
        "what": what,
        "format": fmt.name,
        "workers": workers,
        "float_type": float_type.name.lower(),
        "unit": unit_json(u),
        "codes": codes,
        "values": to_hex(values),
    }


def make_decode() -> Vector:
    """The content of decode.json."""
    return {"meaning": DECODE_MEANING, "vectors": list(_decodings())}
