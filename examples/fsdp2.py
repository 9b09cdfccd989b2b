"""FSDP2: its reduce-scatters of gradients go through the switch, its all-gathers of parameters through Gloo or NCCL.

inagg testbed --workers 2 -- python examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from blobs import make_model, report, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from inagg_host.torch import Options

dist.init_process_group("inagg", pg_options=Options(reduce_scatter_format="nat8"))
model = make_model()
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))

losses = train(model, torch.optim.SGD(model.parameters(), 0.05), dist.get_rank())

report(dist.get_rank(), losses, dist.group.WORLD.counters)
dist.destroy_process_group()
