"""Memories of a hook's compressor, as plain tensors, numbers and strings: for `torch.save` and `torch.load`, with
``weights_only=True``, and for `torch.distributed.checkpoint`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from inagg_host.compress import Compressor
from inagg_host.compress.memory import Memories, Memory

from .compressed import Compression


def save(compressor: Compressor | None, compression: Compression | None, rank: int, ranks: int) -> dict[str, Any]:
    """Return a rank's state. Memories are its own: their key has the rank, so that all ranks' fit one checkpoint."""
    memories: Memories = {} if compression is None else compression.memories
    return {
        "compressor": str(compressor),
        "ranks": ranks,
        "seed": -1 if compression is None else compression.seed,
        f"rank{rank}": {str(number): _to_tensors(memory) for number, memory in sorted(memories.items())},
        "tensors": len(memories),
    }


def load(compressor: Compressor | None, saved: dict[str, Any], rank: int, ranks: int) -> tuple[int, Memories]:
    """Seed (-1: none) and memories. Raises ValueError if they are not this rank's and this compressor's, of as many
    ``ranks``, or not all."""
    mine, missing = f"rank{rank}", {"compressor", "seed", "tensors", f"rank{rank}"} - saved.keys()
    if missing:
        raise ValueError(
            f"the saved state has no {', '.join(sorted(missing))}: what a compressor remembers is each rank's own, so "
            "every rank saves its state, and loads it with the same number of ranks"
        )
    if saved["compressor"] != str(compressor):
        raise ValueError(
            f"the saved state is of {saved['compressor']}, and this is {compressor}: load it into a state that was "
            "made with the same compressor, and call `use` then"
        )
    if saved.get("ranks", ranks) != ranks:
        raise ValueError(
            f"the saved state is of a run with {saved['ranks']} ranks, and here are {ranks}: begin without it, as what "
            "the other ranks remember would be lost"
        )
    memories = {int(number): _from_tensors(content) for number, content in saved[mine].items()}
    if len(memories) != saved["tensors"]:
        raise ValueError(
            f"the saved state has {len(memories)} of {saved['tensors']} tensors: torch.distributed.checkpoint loads "
            "into what is there, so run one backward pass before, in which memories are made"
        )
    return int(saved["seed"]), memories


def _to_tensors(memory: Memory) -> dict[str, Any]:
    arrays = {name: torch.from_numpy(array).clone() for name, array in memory.state.items()}
    return {"elements": memory.d, "dtype": str(memory.dtype), "step": memory.step, "state": arrays}


def _from_tensors(content: dict[str, Any]) -> Memory:
    arrays = {name: tensor.cpu().numpy().copy() for name, tensor in content["state"].items()}
    return Memory(int(content["elements"]), np.dtype(content["dtype"]), int(content["step"]), arrays)
