"""FSDP2 over the backend "inagg", saved and loaded by torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import digest, equal
from tests.host.torch.test_sharded import full
from tests.host.torch.world import World
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Training:
    """A sharded model and its optimizer, after ``steps``."""

    def __init__(self, replicas: int, steps: int, seed: int) -> None:
        mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("r", "s"))
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(100, 101), nn.ReLU(), nn.Linear(101, 7))
        for module in (self.model[0], self.model[2], self.model):
            fully_shard(module, mesh=mesh if replicas > 1 else mesh["s"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        for _ in range(steps):
            self.model(torch.randn(4, 100)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def digest(self) -> str:
        moments = [state["exp_avg"] for state in self.optimizer.state.values()]
        return digest(*(full(tensor) for tensor in (*self.model.parameters(), *moments)))


def save_and_load(replicas: int, folder: Path, aside: bool) -> tuple[str, str, str]:
    """What one training has saved, what another was before it has loaded that, and after; ``aside``: it is saved while
    training goes on."""
    saved = Training(replicas, 3, seed=0)
    found = saved.digest()
    if aside:
        group = dist.new_group(backend="gloo")
        saving = async_save(saved.state(), checkpoint_id=folder, process_group=group)
        Training(replicas, 3, seed=1)
        assert not isinstance(saving, AsyncSaveResponse)
        saving.result()
    else:
        save(saved.state(), checkpoint_id=folder)
    dist.barrier()
    loaded = Training(replicas, 1, seed=2)
    before, state = loaded.digest(), loaded.state()
    load(state, checkpoint_id=folder)
    set_state_dict(loaded.model, loaded.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return found, before, loaded.digest()


@pytest.mark.parametrize("aside", [False, True], ids=["save", "async_save"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_checkpoint_has_the_bits_of_what_was_saved(four: World, tmp_path: Path, replicas: int, aside: bool) -> None:
    saved, before, after = equal(four.run(save_and_load, replicas, tmp_path, aside))
    assert before != saved == after
