"""`InaggState.state_dict`: what a compressor remembers, in a checkpoint."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.compress.test_hook import hooked, train
from tests.host.torch.world import World
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from inagg_host.torch import InaggState

OPTIONS: dict[str, Any] = {"compressor": "ef+natural+topk:k=0.05", "min_bytes": 0, "seed": 7}


def through_a_file() -> tuple[list[str], list[str]]:
    """Six steps; and three, a checkpoint that is read with ``weights_only``, and three more of other objects."""
    with InaggState(**OPTIONS) as state:
        whole = train(hooked(state), range(6))
    with InaggState(**OPTIONS) as state:
        model = hooked(state)
        train(model, range(3))
        saved = io.BytesIO()
        torch.save({"model": model.module.state_dict(), "state": state.state_dict()}, saved)
    saved.seek(0)
    content = torch.load(saved, weights_only=True)
    with InaggState(**OPTIONS) as restored:
        restored.load_state_dict(content["state"])
        model = hooked(restored)
        model.module.load_state_dict(content["model"])
        return whole[3:], train(model, range(3, 6))


def test_a_state_that_was_loaded_goes_on_with_the_same_bits(beside: World) -> None:
    for whole, restored in beside.run(through_a_file):
        assert restored == whole


def by_distributed_checkpoint(folder: str) -> tuple[list[str], list[str], str]:
    """The same through torch.distributed.checkpoint, into a state that has seen other gradients, and into a new one."""
    with InaggState(**OPTIONS) as state:
        model = hooked(state)
        train(model, range(3))
        save({"model": model.module.state_dict(), "state": state.state_dict()}, checkpoint_id=folder)
        whole = train(model, range(3, 6))
    with InaggState(**OPTIONS) as restored:
        content = {"state": restored.state_dict()}
        load(content, checkpoint_id=folder)
        with pytest.raises(ValueError, match="tensors") as caught:
            restored.load_state_dict(content["state"])
        model = hooked(restored)
        train(model, range(7, 8))
        content = {"model": model.module.state_dict(), "state": restored.state_dict()}
        load(content, checkpoint_id=folder)
        restored.load_state_dict(content["state"])
        model.module.load_state_dict(content["model"])
        return whole, train(model, range(3, 6)), str(caught.value)


def test_distributed_checkpoints_hold_every_ranks_memory(beside: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for whole, restored, error in beside.run(by_distributed_checkpoint, str(Path(folder) / "saved")):
            assert restored == whole
            assert "run one backward pass" in error


def loaded_wrongly() -> list[str]:
    errors = []
    with InaggState(**OPTIONS) as state:
        model = hooked(state)
        train(model, range(1))
        saved = state.state_dict()
        other = saved | {"compressor": "TopK(k=1)"}
        of_others = {name: value for name, value in saved.items() if name != f"rank{dist.get_rank()}"}
        for wrong in (other, of_others):
            with pytest.raises(ValueError, match="saved state") as caught:
                state.load_state_dict(wrong)
            errors.append(str(caught.value))
        assert state.state_dict()["tensors"] == saved["tensors"] > 0
    return errors


def test_what_is_not_this_ranks_or_this_compressors_is_refused(beside: World) -> None:
    for other, of_others in beside.run(loaded_wrongly):
        assert "is of TopK(k=1)" in other
        assert "every rank saves its state" in of_others
