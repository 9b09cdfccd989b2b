"""The worker's kernels on the CPU: floats to datagrams and back, many blocks a call, at the speed of memory.

They give the bits of `inagg_wire.codec` and `inagg_wire.scale`, which are the reference, for float16, bfloat16 (as
uint16 bits), float32 and float64. All release the GIL, and none raises for what comes off the wire. The core calls them
by address: see `calls`.

A tensor is a flat array; its block i is the elements from i * lanes on, the last one padded with zeros. A block has a
*number* in the job's stream too, which seeds its rounding noise.

The first call for a family of formats and a size of float compiles, for some seconds, and the result is cached on disk:
what loops call is compiled ahead (`inagg_host.warmup`).
"""

from .encoder import ALL_GOOD
from .job import Job

__all__ = ["ALL_GOOD", "Job"]
