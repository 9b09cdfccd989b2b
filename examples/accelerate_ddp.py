"""Hugging Face Accelerate: `prepare` returns the DDP module, which takes the hook.

pip install '.[accelerate]'   # in the clone
inagg testbed --workers 2 -- python examples/accelerate_ddp.py
"""

from typing import Any

import torch
from accelerate import Accelerator
from blobs import batches, make_model, report
from torch import nn

from inagg_host.torch import InaggState, inagg_hook

accelerator = Accelerator(cpu=True)
network = make_model()
model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.05))
state = InaggState()
ddp: Any = model
ddp.register_comm_hook(state, inagg_hook)

losses = []
for points, labels in batches(accelerator.process_index):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(points), labels)
    accelerator.backward(loss)
    optimizer.step()
    losses.append(loss.item())

report(accelerator.process_index, losses, state.counters)
state.close()
accelerator.end_training()
