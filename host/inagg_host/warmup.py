"""Compilation of a worker's loops and kernels before any operation needs them."""

from __future__ import annotations

from functools import partial

from inagg_link.first_start import Unit
from inagg_wire.formats import JobFormat
from inagg_wire.scale import FloatType

from .codec import calls, encoder, encoder_loops, launches, staged
from .codec import job as jobs
from .io import loop, watchdog

_SOURCES = {
    FloatType.FLOAT32: calls.__file__,
    FloatType.FLOAT64: encoder.__file__,
    FloatType.FLOAT16: encoder_loops.__file__,  # bfloat16 has the same
}


def units(fmt: JobFormat) -> list[Unit]:
    """All that a job of that format may need, whatever its tensors are."""
    workers, lanes = 1, fmt.min_lanes  # what is compiled is the same for all numbers

    def kernels(float_type: FloatType) -> None:
        calls.addresses(jobs.Job(fmt, workers, 0, lanes, 0, float_type))

    return [
        Unit(loop.__file__, loop.warm_up),
        *(Unit(source, partial(kernels, float_type)) for float_type, source in _SOURCES.items()),
    ]


def device_units() -> list[Unit]:
    """Units that a job needs besides when the first tensor of a device is summed, but for what Triton compiles."""
    return [
        Unit(staged.__file__, staged.compile_kernels),
        Unit(launches.__file__, launches.compile_launch),
        Unit(watchdog.__file__, watchdog.warm_up),
    ]
