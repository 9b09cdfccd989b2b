"""Hosts of several GPUs: each sums inside first, and sends as many bytes as one GPU. Here two hosts of two, on the CPU.

    inagg testbed --workers 2 --local-size 2 -- python examples/many_gpus.py

On real hosts: InaggState(local_size="auto"), which is what torchrun started on each.
"""

import torch
import torch.distributed as dist
from blobs import make_model, report, train
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggState, inagg_hook

dist.init_process_group("gloo")
model = DistributedDataParallel(make_model())
state = InaggState()  # INAGG_LOCAL_SIZE says how many ranks a host has
model.register_comm_hook(state, inagg_hook)

losses = train(model, torch.optim.SGD(model.parameters(), 0.05), dist.get_rank())

report(dist.get_rank(), losses, state.counters)
state.close()
dist.destroy_process_group()
