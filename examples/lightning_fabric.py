"""Lightning Fabric: what `setup` returns has the DDP module inside, which takes the hook.

pip install '.[lightning]'   # in the clone
inagg testbed --workers 2 -- python examples/lightning_fabric.py
"""

from typing import Any

import torch
from blobs import STEPS, batches, make_model, rank_and_world, report
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from inagg_host.torch import InaggState, inagg_hook

rank, workers = rank_and_world()
fabric = Fabric(accelerator="cpu", devices=workers, strategy=DDPStrategy(process_group_backend="gloo"))
fabric.launch()
network = make_model()
model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), 0.05))
state = InaggState()
ddp: Any = model._forward_module
ddp.register_comm_hook(state, inagg_hook)

losses = []
for points, labels in batches(rank, STEPS):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(points), labels)
    fabric.backward(loss)
    optimizer.step()
    losses.append(loss.item())

report(rank, losses, state.counters)
state.close()
