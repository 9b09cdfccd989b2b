"""HSDP on a mesh of 2 x 2 ranks, of which the last is killed in mid-training; each of the others catches its error,
prints it, and destroys its groups then, as scripts do. Run by `test_mesh_ends`."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import inagg_host.torch

STEPS, KILLED_IN, KILLED = 6, 4, 3


def main() -> None:
    inagg_host.torch.configure(heartbeat_limit_s=1.0)
    torch.set_num_threads(1)
    dist.init_process_group("inagg", timeout=timedelta(seconds=60))
    rank, told = dist.get_rank(), "nothing"
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    try:
        for step in range(STEPS):
            out = model(torch.ones(2, 200)).sum()
            if (rank, step) == (KILLED, KILLED_IN):
                os.kill(os.getpid(), signal.SIGKILL)
            out.backward()
    except RuntimeError as error:
        told = f"{type(error).__name__}: {error}".replace("\n", " ")
    print(f"rank {rank} was told: {told}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
