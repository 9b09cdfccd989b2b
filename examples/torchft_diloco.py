"""DiLoCo over the switch: replicas train by themselves and average what they have learnt every few steps.

    pip install '.[torchft]'   # in the clone
    inagg testbed --workers 2 -- python examples/torchft_diloco.py

What is averaged are differences of parameters, and no gradients: the group's default format, fixed point, is for such.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from blobs import batches, make_model, rank_and_world, report
from torch import nn
from torchft import Manager
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from inagg_host.torch.elastic import ProcessGroupInagg

SYNC_EVERY = 10

rank, replicas = rank_and_world()
meeting = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0, wait_for_workers=False
)
if rank == 0:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=replicas)
    meeting.set("lighthouse", lighthouse.address())

network = make_model()
inner = torch.optim.SGD(network.parameters(), 0.05)
outer = torch.optim.SGD(network.parameters(), 0.7, momentum=0.5, nesterov=True)
group = ProcessGroupInagg(timeout=timedelta(seconds=60))


def state_dict() -> dict[str, Any]:
    return {"model": network.state_dict(), "inner": inner.state_dict(), "outer": outer.state_dict()}


def load_state_dict(state: dict[str, Any]) -> None:
    network.load_state_dict(state["model"])
    inner.load_state_dict(state["inner"])
    outer.load_state_dict(state["outer"])


own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=group, min_replica_size=replicas, load_state_dict=load_state_dict, state_dict=state_dict,
    replica_id=f"replica{rank}", lighthouse_addr=meeting.get("lighthouse").decode(), store_addr="localhost",
    store_port=own.port, rank=0, world_size=1, use_async_quorum=False,
)  # fmt: skip

losses = []
with DiLoCo(manager, [network], inner, outer, SYNC_EVERY):
    for points, labels in batches(rank):
        inner.zero_grad()
        loss = nn.functional.cross_entropy(network(points), labels)
        loss.backward()
        inner.step()  # every SYNC_EVERY-th averages
        losses.append(loss.item())

report(rank, losses, group.parent.counters)
if meeting.add("done", 1) == replicas:
    meeting.set("all done", "")
meeting.wait(["all done"])  # the lighthouse stays until then
manager.shutdown(wait=False)
group.shutdown()
