"""scales.json: scale rounds, from values to the agreed unit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from inagg_wire.formats import FORMATS
from inagg_wire.scale import SCALE_NONFINITE, Floats, FloatType, unit

from .common import Vector, agree, from_bits, random_values, to_hex, unit_json

MEANING = (
    "`rounds`: one scale block of each worker (`values`, bit patterns), each worker's `own` scale byte, the "
    "`agreed` one (the maximum), each worker's refinement byte (null: the format has none), the agreed "
    "`refinement`, and the unit: mantissa * 2^exponent, with mantissa 0 for a block of zeros and null for one "
    "that is NaN on all workers. `units`: agreed bytes to units, also those that nobody sends."
)

F16, BF16, F32, F64 = FloatType.FLOAT16, FloatType.BFLOAT16, FloatType.FLOAT32, FloatType.FLOAT64
Case = tuple[str, str, FloatType, list[Floats]]


def _f32(*rows: Sequence[int]) -> list[Floats]:
    return [from_bits(row, F32) for row in rows]


def _f64(*rows: Sequence[float]) -> list[Floats]:
    return [np.array(row, np.float64) for row in rows]


def _edges() -> Iterator[Case]:
    one, minus_zero, smallest, largest = 0x3F800000, 0x80000000, 0x00000001, 0x7F7FFFFF
    yield "zero and -0.0 everywhere: byte 0", "nat8", F32, _f32([0, 0], [minus_zero, 0])
    yield "a power of two is its own scale", "nat8", F32, _f32([one, 0], [0x3F000000, 0])
    yield "just above a power of two: the next", "nat8", F32, _f32([one + 1, 0], [one, 0])
    yield "a negative value counts by its magnitude", "nat8", F32, _f32([0xC0400000, one])
    yield "one worker has zeros, the other has not", "nat8", F32, _f32([0, 0], [0xBF000000, smallest])
    yield "the largest float32", "nat8", F32, _f32([largest, one])
    yield "the largest float32 in dith8: byte 249", "dith8", F32, _f32([largest, one])
    yield "the smallest subnormal: the lowest byte", "nat8", F32, _f32([smallest, 0])
    yield "2^-119 has the lowest byte too", "nat8", F32, _f32([0x04000000, 0])
    yield "just above 2^-119", "nat8", F32, _f32([0x04000001, 0])
    yield "NaN wins", "nat8", F32, _f32([one, 0x7FC00000], [one, one])
    yield "a NaN with sign and payload wins", "tern", F32, _f32([one, 0xFF800001], [one, one])
    yield "infinity wins", "fix32", F32, _f32([one, 0], [0x7F800000, one])
    yield "-infinity wins", "dith8", F32, _f32([0xFF800000, 0], [largest, one])
    yield "float64: 2^129 is the largest magnitude", "nat8", F64, _f64([2.0**129, 1.0])
    yield "float64: just above 2^129 is non-finite", "nat8", F64, _f64([np.nextafter(2.0**129, np.inf), 1.0])
    yield "float64: dith8 reaches 2^129 * 127 / 128", "dith8", F64, _f64([2.0**129 / 128 * 127])
    yield "float64: dith8, just above that", "dith8", F64, _f64([np.nextafter(2.0**129 / 128 * 127, np.inf)])
    yield "float64: below float32's range", "nat8", F64, _f64([1e-300, -5e-324])
    yield "dith8: 127/128 of a power of two fits it", "dith8", F32, _f32([0x3F7E0000, 0])
    yield "dith8: just above, it does not", "dith8", F32, _f32([0x3F7E0001, 0])
    for name in ("nat8", "nat4", "tern", "dith8", "fix32"):
        yield f"float16: its smallest subnormal in {name}", name, F16, [from_bits([1, 0], F16)] * 2
        yield f"float16: its largest in {name}", name, F16, [from_bits([0x7BFF, 0], F16)] * 2
        yield f"bfloat16: its smallest subnormal in {name}", name, BF16, [from_bits([1, 0x8000], BF16)] * 2
        yield f"bfloat16: its largest in {name}", name, BF16, [from_bits([0x7F7F, 0xFF7F], BF16)] * 2


def _refinements() -> Iterator[Case]:
    yield "refinement 0: just above the power below", "tern", F32, _f32([0x3F800001, 0], [0x3F000000, 0])
    yield "refinement 255: the power itself", "tern", F32, _f32([0x40000000, 0], [0x3FFFFFFF, 0])
    yield "refinement: rounded up", "tern", F32, _f32([0x3FC00000, 0], [0x3FC00001, 0])
    yield "a smaller exponent sends 0", "tern", F32, _f32([0x3F81FFFF, 0], [0x3F7FFFFF, 0], [0x3F810000, 0])
    yield "dith8 refines 128/127 of the largest", "dith8", F32, _f32([0x3FC00000, 0], [0x3F000000, 0])
    yield "nothing to refine below the lowest scale", "tern", F32, _f32([0x00000001, 0], [0, 0])


def _random() -> Iterator[Case]:
    rng = random.Random(20240601)
    for name in FORMATS:
        for float_type, workers in ((F32, 1), (F32, 3), (F64, 7), (F16, 2), (BF16, 8)):
            blocks = [random_values(rng, 4, float_type, rng.randrange(-4, 4)) for _ in range(workers)]
            yield f"{name}: {workers} workers, {float_type.name.lower()}", name, float_type, blocks


def _round(what: str, name: str, float_type: FloatType, blocks: list[Floats]) -> Vector:
    own, agreed, refinements, refinement, agreed_unit = agree(FORMATS[name], float_type, blocks)
    return {
        "what": what,
        "format": name,
        "workers": len(blocks),
        "float_type": float_type.name.lower(),
        "values": [to_hex(block) for block in blocks],
        "own": own,
        "agreed": agreed,
        "refinements": refinements,
        "refinement": refinement,
        "unit": unit_json(agreed_unit),
    }


AGREED = ((0, 0), (1, 0), (120, 0), (120, 255), (249, 17), (250, 0), (254, 0), (SCALE_NONFINITE, 0))


def _units() -> Iterator[Vector]:
    for name, fmt in FORMATS.items():
        for scale, refinement in AGREED:
            if refinement and not fmt.refined:
                continue
            for workers in (1, 3, 32):
                yield {
                    "what": f"{name}, {workers} workers: bytes {scale} and {refinement}",
                    "format": name,
                    "workers": workers,
                    "scale": scale,
                    "refinement": refinement,
                    "unit": unit_json(unit(fmt, workers, scale, refinement)),
                }


def make() -> Vector:
    """The content of scales.json."""
    cases = [*_edges(), *_refinements(), *_random()]
    return {"meaning": MEANING, "rounds": [_round(*case) for case in cases], "units": list(_units())}
