"""torchft: replicas come and go, and those that are there go on, their gradients summed by the switch.

    pip install '.[torchft]'   # in the clone
    inagg testbed --workers 2 -- python examples/torchft_ddp.py

Each rank of the testbed is a replica of its own. The first one runs the lighthouse, which elsewhere is
`torchft_lighthouse`, at TORCHFT_LIGHTHOUSE.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from blobs import batches, make_model, rank_and_world, report
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.coordination import LighthouseServer

from inagg_host.torch.elastic import ProcessGroupInagg

rank, replicas = rank_and_world()
meeting = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0, wait_for_workers=False
)
if rank == 0:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=replicas)
    meeting.set("lighthouse", lighthouse.address())

network = make_model()
group = ProcessGroupInagg(timeout=timedelta(seconds=60), format="nat8")


def state_dict() -> dict[str, Any]:
    return {"model": network.state_dict(), "optimizer": optimizer.state_dict()}


def load_state_dict(state: dict[str, Any]) -> None:
    network.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=group, min_replica_size=replicas, load_state_dict=load_state_dict, state_dict=state_dict,
    replica_id=f"replica{rank}", lighthouse_addr=meeting.get("lighthouse").decode(), store_addr="localhost",
    store_port=own.port, rank=0, world_size=1,
)  # fmt: skip
model = DistributedDataParallel(manager, network)
optimizer: Any = Optimizer(manager, torch.optim.SGD(network.parameters(), 0.05))

losses = []
for points, labels in batches(rank):
    optimizer.zero_grad()  # a new quorum begins
    loss = nn.functional.cross_entropy(model(points), labels)
    loss.backward()
    optimizer.step()  # if all replicas have the sums
    losses.append(loss.item())

report(rank, losses, group.parent.counters)
if meeting.add("done", 1) == replicas:
    meeting.set("all done", "")
meeting.wait(["all done"])  # the lighthouse stays until then
manager.shutdown(wait=False)
group.shutdown()
