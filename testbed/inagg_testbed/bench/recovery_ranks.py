"""Ranks of `bench recovery`: steps that sum a tensor, each noted in a file when it is done.

python -m inagg_testbed.bench.recovery_ranks numpy|torchrun|torchft inagg|gloo FILE
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from inagg_testbed.topology.launch import die_with_parent

ELEMENTS = 1 << 18
PAUSE_S = 0.02
"""Pause in a step, as if it computed something."""
TIMEOUT = timedelta(seconds=60)


class Notes:
    """Lines of all ranks, in one file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._begun_s = time.monotonic()

    def note(self, **facts: Any) -> None:
        """A line, in one write; ``at_s`` is of the clock that all processes share."""
        line = {"at_s": time.monotonic(), "begun_s": self._begun_s, "pid": os.getpid(), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def numpy_ranks(system: str, notes: Notes) -> None:
    """Arrays, without PyTorch: the ranks stay, the switch goes and comes."""
    import numpy as np

    from inagg_host.allreduce import AllReduce

    assert system == "inagg"
    with AllReduce(format="nat8") as all_reduce:
        step = 0
        while True:
            all_reduce(np.ones(ELEMENTS, np.float32))
            step += 1
            notes.note(rank=all_reduce.config.rank, step=step, workers=all_reduce.config.workers)
            time.sleep(PAUSE_S)


def torchrun_ranks(system: str, notes: Notes) -> None:
    """A process group under torchrun, which starts all ranks again when one is gone."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(system, timeout=TIMEOUT)
    attempt, step = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), 0
    while True:
        dist.all_reduce(torch.ones(ELEMENTS))
        step += 1
        notes.note(rank=dist.get_rank(), step=step, workers=dist.get_world_size(), attempt=attempt)
        time.sleep(PAUSE_S)


def torchft_ranks(system: str, notes: Notes) -> None:
    """A replica: one that is gone is left out of the next step, and one that comes is taken in."""
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager
    from torchft.process_group import ProcessGroupGloo

    from inagg_host.torch.elastic import ProcessGroupInagg

    replica = os.environ["REPLICA"]
    weights = torch.zeros(ELEMENTS)
    own = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupGloo(TIMEOUT) if system == "gloo" else ProcessGroupInagg(TIMEOUT, format="nat8")
    manager = Manager(
        pg=group, min_replica_size=2, replica_id=replica, store_addr="localhost", store_port=own.port, rank=0,
        world_size=1, timeout=TIMEOUT, state_dict=lambda: {"weights": weights},
        load_state_dict=lambda state: weights.copy_(state["weights"]),
    )  # fmt: skip
    notes.note(rank=replica, step=0, workers=0)
    while True:
        manager.start_quorum()
        gradient = torch.ones(ELEMENTS)
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            weights.add_(gradient)
            notes.note(rank=replica, step=manager.current_step(), workers=manager.num_participants())
        time.sleep(PAUSE_S)


KINDS: dict[str, Callable[[str, Notes], None]] = {
    "numpy": numpy_ranks,
    "torchrun": torchrun_ranks,
    "torchft": torchft_ranks,
}

if __name__ == "__main__":
    kind, system, path = sys.argv[1:]
    # torchrun gives each rank a session of its own, and may be killed itself, even before this line
    if (parent := os.getppid()) == 1:
        sys.exit("whoever started this rank is gone")
    die_with_parent(parent)
    KINDS[kind](system, Notes(path))
