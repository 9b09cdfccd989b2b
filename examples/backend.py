"""The process-group backend: sums and means of floats go through the switch, the rest through Gloo or NCCL.

inagg testbed --workers 2 -- python examples/backend.py
"""

import torch
import torch.distributed as dist
from blobs import make_model, report, train
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import lossy

dist.init_process_group("inagg")
model = DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), 0.05)

with lossy("nat8"):  # one byte a value, for what are gradients
    losses = train(model, optimizer, dist.get_rank())

average = torch.full((10_000,), losses[-1])
dist.all_reduce(average, op=dist.ReduceOp.AVG)  # in fixed point: this is no gradient
counters = dist.group.WORLD.counters
report(dist.get_rank(), [*losses, average[0].item()], counters)
dist.destroy_process_group()
