"""formats.json: what each job format is for each number of workers."""

from __future__ import annotations

from inagg_wire.formats import CHILDREN_MAX, FORMATS, JobFormat
from inagg_wire.scale import SCALE_BIAS, unit

from .common import Vector

MEANING = (
    "The numbers of each job format for 1 to 32 workers: encodings up and down (the header's format field), "
    "levels and top of a contribution, result_shift (one unit of a result is worth 2^result_shift units), "
    "result_levels, unit_shift (the unit's exponent is s - unit_shift), the most lanes in 1472 bytes of UDP "
    "payload, and scale_lanes for as many."
)


def _row(fmt: JobFormat, workers: int) -> Vector:
    scale = unit(fmt, workers, SCALE_BIAS)  # s = 0
    assert scale is not None
    lanes = fmt.max_lanes(workers)
    return {
        "what": f"{fmt.name} with {workers} workers",
        "format": fmt.name,
        "workers": workers,
        "up": int(fmt.up),
        "down": int(fmt.down(workers)),
        "levels": fmt.levels(workers),
        "top": fmt.top(workers),
        "result_shift": fmt.result_shift(workers),
        "result_levels": fmt.result_levels(workers),
        "unit_shift": -scale.exponent,
        "max_lanes": lanes,
        "scale_lanes": fmt.scale_lanes(lanes),
    }


def make() -> Vector:
    """The content of formats.json."""
    rows = [_row(fmt, n) for fmt in FORMATS.values() for n in range(1, CHILDREN_MAX + 1)]
    return {"meaning": MEANING, "vectors": rows}
