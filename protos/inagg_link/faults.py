"""Faults of a bad network: settings alone, which `fault_model` carries out."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of datagrams. `drop`, `corrupt`, `duplicate` and `reorder` are independent probabilities per datagram.

    `drop`: it is gone.
    `corrupt`: `corrupt_bits` of its bits, drawn with replacement, are flipped below the UDP checksum. A
    kernel that checks would discard it, and so do we, unless `checksum` is False: then it is delivered as it
    is.
    `duplicate`: it arrives twice; the copy right behind it, or up to `duplicate_s` seconds later (uniform) if
    that is not 0.
    `reorder`: it is held back for up to `reorder_s` seconds (uniform), so that later ones overtake it.
    `delay_s`, `jitter_s`: every batch takes `delay_s` plus up to `jitter_s` (uniform, one draw per batch, so
    batches overtake one another but the datagrams of a batch do not). The jitter therefore does depend on the
    batching.

    ValueError: a probability is not in 0..1, or a time is negative or not finite.
    """

    drop: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt_bits: int = 1
    checksum: bool = True
    duplicate_s: float = 0.0
    reorder_s: float = 0.001
    delay_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("drop", "corrupt", "duplicate", "reorder"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability, 0..1, not {getattr(self, name)}")
        for name in ("duplicate_s", "reorder_s", "delay_s", "jitter_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ValueError(f"{name} is a time in seconds, not {getattr(self, name)}")
        if self.corrupt_bits < 1:
            raise ValueError(f"corrupt_bits is at least 1, not {self.corrupt_bits}")

    def __repr__(self) -> str:
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Faults({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"
