"""Replicas of torchft, as threads of one process, with faults that are told; what they end with, as JSON.

python -m tests.host.torch.replicas [--replicas 0,1,2] [--steps 20] [--sync] [--crash R@STEP] [--late R@STEP]
    [--break-job R@STEP] [--lighthouse ADDRESS | --serve]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import Manager
from torchft.coordination import LighthouseServer

from inagg_host.torch.elastic import ProcessGroupInagg
from inagg_switch.service.control_client import ControlClient

ELEMENTS = 1 << 16
TIMEOUT = timedelta(seconds=30)


class CrashError(Exception):
    """What a replica dies of that was told to."""


class Replica:
    """A copy of a model: its weights, and the group by which it averages gradients."""

    def __init__(self, index: int, life: int, lighthouse: str, sync: bool) -> None:
        self.weights = torch.full((ELEMENTS,), float(index + 10 * life))  # a copy that recovers must take another's
        self.index, self.life, self.workers = index, life, list[int]()
        self.group = ProcessGroupInagg(TIMEOUT, format="nat8")
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=self.group, min_replica_size=2, replica_id=f"replica{index}-{life}", lighthouse_addr=lighthouse,
            store_addr="localhost", store_port=self._store.port, rank=0, world_size=1, timeout=TIMEOUT,
            use_async_quorum=not sync, state_dict=lambda: {"weights": self.weights.clone()},
            load_state_dict=lambda state: self.weights.copy_(state["weights"]),
        )  # fmt: skip

    def step(self) -> bool:
        """A step; whether it counts."""
        self.manager.start_quorum()
        generator = torch.Generator().manual_seed(1000 * self.manager.current_step() + self.index)
        gradient = torch.randn(ELEMENTS, generator=generator)
        self.manager.allreduce(gradient).wait()
        if not self.manager.should_commit():
            return False
        self.weights.add_(gradient)
        self.workers.append(self.manager.num_participants())
        return True

    def end(self) -> None:
        """Leave."""
        self.manager.shutdown(wait=False)
        self.group.shutdown()

    def told(self) -> dict[str, Any]:
        """What a test looks at."""
        state = hashlib.sha256(self.weights.numpy().tobytes()).hexdigest()
        group: Any = self.group.parent
        return {"replica": self.index, "life": self.life, "step": self.manager.current_step(), "state": state,
                "workers": self.workers, "summed": group.counters.operations}  # fmt: skip


class Plan:
    """Which replica meets what, and at which step."""

    def __init__(self, arguments: argparse.Namespace, lighthouse: str) -> None:
        self.arguments, self.lighthouse, self.steps = arguments, lighthouse, arguments.steps
        self.reached, self.lock, self.failed = 0, threading.Lock(), 0
        self.done = threading.Barrier(len(arguments.replicas))

    def meets(self, fault: str, replica: int) -> int | None:
        """The step at which ``replica`` meets ``fault``."""
        who, _, step = (getattr(self.arguments, fault) or "").partition("@")
        return int(step) if who == str(replica) else None

    def run(self, index: int) -> dict[str, Any]:
        """A replica, which lives again if it crashes."""
        if (late := self.meets("late", index)) is not None:
            while self.reached < late:
                time.sleep(0.01)
        for life in range(2):
            replica = Replica(index, life, self.lighthouse, self.arguments.sync)
            try:
                self.train(replica)
                told = replica.told()
                self.done.wait(60)  # who heals may still need the others' states
                return told
            except CrashError:
                continue
            finally:
                replica.end()
        raise AssertionError("it crashed twice")

    def train(self, replica: Replica) -> None:
        crash, broken = (self.meets(fault, replica.index) for fault in ("crash", "break_job"))
        while (step := replica.manager.current_step()) < self.steps:
            if step == crash and replica.life == 0:
                raise CrashError
            if step == broken:
                broken = None
                self.break_jobs()
            if replica.step():
                with self.lock:
                    self.reached = max(self.reached, replica.manager.current_step())
                print(json.dumps({"replica": replica.index, "did": step}), flush=True)
            else:
                self.failed += 1
            time.sleep(0.02)

    def break_jobs(self) -> None:
        """An operator ends what runs on the switch."""
        with ControlClient(os.environ["INAGG_SWITCH"]) as client:
            for job in client.list().jobs:
                client.evict(job.spec.name, "a test")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sync", action="store_true")
    for fault in ("--crash", "--late", "--break-job", "--lighthouse"):
        parser.add_argument(fault)
    parser.add_argument("--serve", action="store_true", help="a lighthouse alone, until standard input ends")
    arguments = parser.parse_args()
    address = arguments.lighthouse
    if address is None:
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=500)
        address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    if arguments.serve:
        print(address, flush=True)
        sys.stdin.read()
        return
    plan = Plan(arguments, address)
    with ThreadPoolExecutor(len(arguments.replicas)) as pool:
        ends = list(pool.map(plan.run, arguments.replicas))
    print(json.dumps({"ends": ends, "failed": plan.failed}), flush=True)
    os._exit(0)  # torchft's threads may still wait for each other


if __name__ == "__main__":
    main()
