"""DistributedDataParallel, its gradients summed by the switch: one line.

    inagg testbed --workers 2 -- python examples/ddp_hook.py
or, with a switch somewhere,
    INAGG_SWITCH=HOST:47100 torchrun --nproc-per-node 2 examples/ddp_hook.py
"""

import torch
import torch.distributed as dist
from blobs import make_model, report, train
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggState, inagg_hook

dist.init_process_group("gloo")  # "nccl" where there are GPUs
model = DistributedDataParallel(make_model())
state = InaggState()
model.register_comm_hook(state, inagg_hook)

losses = train(model, torch.optim.SGD(model.parameters(), 0.05), dist.get_rank())

report(dist.get_rank(), losses, state.counters)
state.close()
dist.destroy_process_group()
