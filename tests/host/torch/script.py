"""A training script as a user would write it; its argument says how it ends. Run by `test_ends`, or by torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inagg_host.torch

FAILING_RANK = 1
STEPS_BEFORE = 5


class UserError(Exception):
    """What goes wrong in the script itself."""


def main(mode: str) -> None:
    inagg_host.torch.configure(heartbeat_limit_s=1.0)
    torch.set_num_threads(1)
    dist.init_process_group("inagg", timeout=timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "60"))))
    rank = dist.get_rank()
    if mode == "train":
        train_well(rank)
    else:
        try:
            train_badly(rank, mode)
        except RuntimeError as error:
            print(f"rank {rank} was told: {error}", flush=True)
            raise
        finally:
            if mode == "finally":
                dist.destroy_process_group()
    if dist.is_initialized():
        dist.destroy_process_group()


def train_well(rank: int) -> None:
    """Train on the digits; what comes out."""
    from inagg_testbed.training import Plan, accuracy, load_digits, make_model, train

    digits, test = load_digits()
    network = make_model(0)
    train(DistributedDataParallel(network), digits, Plan(epochs=5), rank, dist.get_world_size())
    weights = sum(float(p.double().sum()) for p in network.parameters())
    # In one piece: torchrun's processes share the pipe.
    sys.stdout.write(f"rank {rank} ends with {weights!r}, accuracy {accuracy(network, test):.3f}\n")


def train_badly(rank: int, mode: str) -> None:
    """Train until the failing rank fails."""
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    aside = dist.new_group()
    dist.all_reduce(torch.ones(100_000), group=aside)
    for step in range(STEPS_BEFORE + 1):
        if step == STEPS_BEFORE:
            print(f"rank {rank} has trained", flush=True)
            if rank == FAILING_RANK:
                fail(mode, aside)
        model(torch.ones(2, 100)).sum().backward()


def fail(mode: str, aside: dist.ProcessGroup) -> None:
    """What the failing rank does in the middle of its training."""
    match mode:
        case "raise" | "finally":
            raise UserError("a mistake of the user")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(60)
        case "pending":
            work = dist.all_reduce(torch.ones(100_000), group=aside, async_op=True)
            work.get_future().then(lambda done: print("never comes here", done.value()))
            raise UserError("with something in flight")


if __name__ == "__main__":
    main(sys.argv[1])
