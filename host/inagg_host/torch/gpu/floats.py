"""Types of floats, and the integers that have their bits."""

from __future__ import annotations

from typing import Any

import torch

from inagg_wire.scale import FloatType

DTYPES = {
    FloatType.FLOAT16: torch.float16, FloatType.BFLOAT16: torch.bfloat16, FloatType.FLOAT32: torch.float32,
    FloatType.FLOAT64: torch.float64,
}  # fmt: skip
FLOATS: dict[int, Any] = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type of as many bytes as a float."""
