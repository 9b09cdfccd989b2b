"""Ways to train on several machines, which `bench training` compares: what each does with gradients or parameters."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inagg.extras import install

from .training_command import DILOCO, DILOCO_INAGG, NEEDS_TORCHFT

SYNC_EVERY = 10
"""Steps between two meetings of those that train by themselves meanwhile."""
WARM_UP = 10
"""Steps with full gradients at first, of PowerSGD and post-local SGD."""
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Learning rate and momentum of DiLoCo's outer steps (Douillard and others, 2023), Nesterov."""
TIMEOUT = timedelta(seconds=120)
ONE_BUCKET_MIB = 256
"""PowerSGD on Gloo hangs with several buckets."""


@dataclass(frozen=True)
class Place:
    """Where a rank is, and whom it can ask."""

    rank: int
    workers: int
    host: str
    lighthouse: str | None
    """Address of torchft's lighthouse, if there is one."""


@dataclass
class Trainer:
    """A network that is trained in some way."""

    forward: nn.Module
    optimizer: Any
    sharded: bool = False
    """No rank has the whole network, so all must do what one of them looks at."""
    close: list[Callable[[], None]] = field(default_factory=list)


Make = Callable[[nn.Module, torch.optim.Optimizer, Place], Trainer]


def _ddp(hook: Callable[[], tuple[object, Callable[..., Any]]] | None = None) -> Make:
    def make(network: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Trainer:
        model = DistributedDataParallel(network, bucket_cap_mb=ONE_BUCKET_MIB, broadcast_buffers=False)
        if hook is not None:
            model.register_comm_hook(*hook())
        return Trainer(model, optimizer)

    return make


def _built_in(name: str) -> Make:
    """A hook of PyTorch's, which refuses the one for bfloat16 by its name where there is no NCCL. Gloo sums it."""

    def hook() -> tuple[object, Callable[..., Any]]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        compress = getattr(default_hooks, name)
        return None, lambda state, bucket: compress(state, bucket)

    return _ddp(hook)


def _power_sgd(rank: int) -> Make:
    def hook() -> tuple[object, Callable[..., Any]]:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=WARM_UP, min_compression_rate=1.0
        )
        return state, powerSGD_hook.powerSGD_hook

    return _ddp(hook)


def _post_local_sgd(network: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Trainer:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    alone, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(network, bucket_cap_mb=ONE_BUCKET_MIB, broadcast_buffers=False)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=WARM_UP)  # type: ignore[no-untyped-call]
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(SYNC_EVERY, warmup_steps=WARM_UP - 1)  # it counts from 0
    return Trainer(model, PostLocalSGDOptimizer(optimizer, averager))


def _inagg(**options: Any) -> Make:
    def make(network: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Trainer:
        from inagg_host.torch import InaggState, inagg_hook

        model = DistributedDataParallel(network, bucket_cap_mb=ONE_BUCKET_MIB, broadcast_buffers=False)
        state = InaggState(**options)
        model.register_comm_hook(state, inagg_hook)
        return Trainer(model, optimizer, close=[state.close])

    return make


def _fsdp2(**options: Any) -> Make:
    """``options``: of the backend "inagg"; none: Gloo."""

    def make(network: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Trainer:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        from inagg_host.torch import Options

        ours: dict[str, Any] = {"backend": "inagg", "pg_options": Options(**options)} if options else {}
        group = dist.new_group(**ours)
        fully_shard(network, mesh=DeviceMesh.from_group(group, "cpu"))
        takes = inspect.signature(type(optimizer)).parameters  # AdamW's defaults have more than it takes
        kept = {name: value for name, value in optimizer.defaults.items() if name in takes}
        again = type(optimizer)(network.parameters(), **kept)  # of the shards
        return Trainer(network, again, sharded=True, close=[lambda: dist.destroy_process_group(group)])

    return make


def _diloco(group: Callable[[], Any]) -> Make:
    def make(network: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Trainer:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torchft import Manager
        from torchft.local_sgd import DiLoCo

        store = TCPStore(place.host, 0, is_master=True, wait_for_workers=False)
        replicas = group()
        manager = Manager(
            pg=replicas, min_replica_size=place.workers, load_state_dict=lambda state: None, state_dict=dict,
            replica_id=f"replica{place.rank}", lighthouse_addr=place.lighthouse, store_addr=place.host,
            store_port=store.port, hostname=place.host, rank=0, world_size=1, timeout=TIMEOUT,
            use_async_quorum=False, init_sync=False,
        )  # fmt: skip
        outer = torch.optim.SGD(network.parameters(), OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
        averaging = DiLoCo(manager, [network], optimizer, outer, SYNC_EVERY)
        averaging.__enter__()

        def close() -> None:
            averaging.__exit__(None, None, None)
            assert store is not None  # it lives as long as the manager: the others meet there
            dist.barrier()  # nobody leaves while others still meet
            manager.shutdown(wait=False)
            replicas.shutdown()

        return Trainer(network, optimizer, close=[close])

    return make


def _gloo_replicas() -> Any:
    from torchft.process_group import ProcessGroupGloo

    return ProcessGroupGloo(TIMEOUT)


def _inagg_replicas() -> Any:
    from inagg_host.torch.elastic import ProcessGroupInagg

    return ProcessGroupInagg(TIMEOUT)


SYSTEMS: dict[str, Make] = {
    "gloo float32": _ddp(),
    "gloo bf16": _built_in("bf16_compress_hook"),
    "gloo fp16": _built_in("fp16_compress_hook"),
    "gloo PowerSGD 4": _power_sgd(4),
    "gloo PowerSGD 2": _power_sgd(2),
    "gloo post-local SGD": _post_local_sgd,
    DILOCO: _diloco(_gloo_replicas),
    "inagg nat8": _inagg(format="nat8"),
    "inagg dith8": _inagg(format="dith8"),
    "inagg nat4": _inagg(format="nat4"),
    "inagg tern + EF": _inagg(format="tern", compressor="ef:damping=0.5+terngrad"),
    "gloo FSDP2": _fsdp2(),
    "inagg FSDP2 nat8": _fsdp2(reduce_scatter_format="nat8"),
    DILOCO_INAGG: _diloco(_inagg_replicas),
}
BASELINE = "gloo float32"


def why_not(system: str) -> str | None:
    """Why a system cannot be tried here; None if it can."""
    if system in NEEDS_TORCHFT and importlib.util.find_spec("torchft") is None:
        return f"no torchft: {install('torchft')}"
    return None
