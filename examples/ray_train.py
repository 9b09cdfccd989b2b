"""Ray Train: `TorchConfig(backend="inagg")`, and DDP's gradients are summed by the switch. A worker that is lost is
replaced, and training goes on from the last checkpoint.

    pip install '.[ray]'   # in the clone
    inagg switch &
    INAGG_SWITCH=127.0.0.1:47100 python examples/ray_train.py [ADDRESS OF A RAY CLUSTER]
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer

HERE = str(Path(__file__).parent)
WORKERS, STEPS, SAVE_EVERY = 2, int(os.environ.get("STEPS", "40")), 5


def train_on_a_worker(settings: dict[str, Any]) -> None:
    """What every worker runs; its process group is there already."""
    from blobs import batches, make_model, report
    from torch.nn.parallel import DistributedDataParallel

    from inagg_host.torch import lossy

    rank = dist.get_rank()
    network = make_model()
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    begin = 0
    if (last := train.get_checkpoint()) is not None:
        with last.as_directory() as folder:
            saved = torch.load(Path(folder) / "saved.pt", weights_only=True)
        network.load_state_dict(saved["model"])
        begin = saved["step"]
    model = DistributedDataParallel(network)
    losses = []
    for step, (points, labels) in enumerate(batches(rank, settings["steps"])):
        if step < begin:
            continue
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        with lossy("nat8"):
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"model": network.state_dict(), "step": step + 1}, Path(folder) / "saved.pt")
                checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
                train.report({"loss": loss.item(), "step": step + 1, "began_at": begin}, checkpoint=checkpoint)
    report(rank, losses, dist.group.WORLD.counters)


def main(address: str | None = None) -> Any:
    """Train; what Ray found."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("INAGG_")}
    ray.init(address=address, runtime_env={"env_vars": {**variables, "PYTHONPATH": HERE}}, log_to_driver=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train_on_a_worker,
            train_loop_config={"steps": STEPS},
            torch_config=TorchConfig(backend="inagg"),
            scaling_config=train.ScalingConfig(num_workers=WORKERS),
            run_config=train.RunConfig(storage_path=folder, failure_config=train.FailureConfig(max_failures=2)),
        )
        result = trainer.fit()
    print(f"loss {result.metrics['loss']:.3f} after {result.metrics['step']} steps", flush=True)
    ray.shutdown()
    return result


if __name__ == "__main__":
    main(*sys.argv[1:2])
