"""slots.json: slot and generation of a block."""

from __future__ import annotations

from inagg_wire.layout import GENERATION_MAX
from inagg_wire.slots import Lease

from .common import Vector

MEANING = (
    "Slot and generation of a block, for a lease of `slots` slots from `base`. `round` counts how often "
    "generations have wrapped before the block; blocks of different rounds need different epochs. Blocks are 64 "
    "bits, in hex."
)


def make() -> Vector:
    """The content of slots.json."""
    small, large = Lease(8, 4), Lease(0x020000, 0x020000)
    epoch = small.slots * GENERATION_MAX
    rows = (
        ("the first block", small, 0),
        ("the last slot of the first generation", small, 3),
        ("the second generation begins", small, 4),
        ("any block", small, 4711),
        ("the last block of an epoch", small, epoch - 1),
        ("generations wrap to 1: a new epoch", small, epoch),
        ("the third round", small, 2 * epoch + 5),
        ("the largest lease", large, 0x1FFFF),
        ("the largest lease, next generation", large, 0x20000),
        ("the smallest lease: 2 slots, a window of 1", Lease(6, 2), 3),
    )
    return {
        "meaning": MEANING,
        "vectors": [
            {
                "what": what,
                "base": lease.base,
                "slots": lease.slots,
                "block": f"{block:016x}",
                "slot": lease.slot(block),
                "generation": lease.generation(block),
                "round": lease.round(block),
            }
            for what, lease, block in rows
        ],
    }
