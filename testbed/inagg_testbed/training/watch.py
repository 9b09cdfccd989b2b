"""Notes of rank 0 on a training for its report, at next to no cost: a few numbers a step, gradients once.

No `from __future__ import annotations` here: DistributedDataParallel compares a hook's annotations as objects.
"""

import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn import functional

from inagg_wire.formats import job_format

from ..report.history import History, count_exponents

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

COMPUTING_STEPS = 20
EXPONENTS_STEP = 20
"""The step whose gradients are looked at: the loss falls, and buckets are those that stay."""


class Watch:
    """Fills a `History`. ``state``: the `InaggState` of the training, None with Gloo."""

    def __init__(self, system: str, format_: str, workers: int, state: Any = None) -> None:
        self.history = History(system, format_)
        self._state, self._workers, self._gradients = state, workers, list[torch.Tensor]()

    def hook(self, inner: Hook) -> Hook:
        """A communication hook that does as ``inner`` and keeps the gradients of one step."""

        def watched(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            if len(self.history.losses) == EXPONENTS_STEP:
                self._gradients.append(bucket.buffer().clone())
            return inner(state, bucket)

        return watched

    def after_step(self, loss: float) -> None:
        """Note a step that is done."""
        self.history.losses.append(loss)
        if self._state is not None:
            counters = self._state.counters
            self.history.round_trips_s.append(counters.rtt_s)
            self.history.resent.append(counters.resent)

    def after_epoch(self, accuracy: float) -> None:
        """Note the accuracy on the test data, 0 to 1."""
        self.history.accuracies.append(accuracy)

    def time_computing(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Time steps of a copy of ``model`` without communication; all workers at once, as they compute in training."""
        copy = deepcopy(model)
        optimizer = torch.optim.SGD(copy.parameters(), lr=1e-3, momentum=0.9)
        seconds = []
        for _ in range(COMPUTING_STEPS):
            start_s = time.perf_counter()
            optimizer.zero_grad()
            functional.cross_entropy(copy(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seconds.append(time.perf_counter() - start_s)
        self.history.computing_ms = statistics.median(seconds) * 1e3

    def finish(self) -> History:
        """The history, with what is known at the end only."""
        if self._state is not None and self.history.losses:
            counters, ms = self._state.counters, 1e3 / len(self.history.losses)
            self.history.transport_ms = {
                "encode": counters.encode_s * ms,
                "decode": counters.decode_s * ms,
                "sockets": counters.network_s * ms,
                "waiting": counters.idle_s * ms,
            }
        if self._gradients:
            fmt = job_format(self.history.format)
            values = torch.cat(self._gradients).numpy().astype(np.float32, copy=False)
            self.history.exponents = count_exponents(
                values, fmt.max_lanes(self._workers), fmt.name, fmt.top(self._workers).bit_length()
            )
        return self.history
