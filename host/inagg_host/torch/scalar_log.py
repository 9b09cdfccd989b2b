"""Curves of what becomes of a training's gradients, beside those that it draws anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from inagg_host.compress.feedback import MEMORY
from inagg_host.compress.memory import Memories
from inagg_host.stats import Counters

log = logging.getLogger("inagg")


@runtime_checkable
class ScalarWriter(Protocol):
    """TensorBoard's `SummaryWriter`, and what has its interface."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Draw a point of a curve."""


@runtime_checkable
class MetricsLogger(Protocol):
    """Lightning's loggers."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> object:
        """Draw a point of each curve."""


Writer = ScalarWriter | MetricsLogger


class GradientSample:
    """One bucket of a step, before and after: what encoding has made of this rank's gradients."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """``tensor`` is about to be summed in place."""
        self._tensor, self._before = tensor, tensor.detach().clone()
        self.contributed = torch.zeros_like(self._before)
        """Gets what this rank's codes stand for."""
        self.metrics: dict[str, float] = {}
        """Rounding errors and what was lost; empty until the sums are there."""

    def compute(self) -> None:
        """Compute the metrics: the sums are there, and the next step has not overwritten them yet."""
        before, own = self._before.double(), self.contributed.double()
        count = max(before.numel(), 1)
        given = before != 0
        norm = float(before.norm())
        self.metrics = {
            "rounding_error": float((own - before).norm()) / norm if norm else 0.0,
            "share_rounded_to_zero": float((given & (own == 0)).sum()) / max(int(given.sum()), 1),
            "share_nan": float(self._tensor.isnan().sum()) / count,
        }


class ScalarLog:
    """Writes means over some steps to a writer, from the thread that runs the hook."""

    def __init__(self, writer: Writer, every: int, prefix: str) -> None:
        """Raises TypeError for what is no writer, ValueError for ``every`` below 1."""
        if not isinstance(writer, Writer):
            raise TypeError(
                f"{type(writer).__name__} is no writer: give one with add_scalar(tag, value, step), such as "
                "TensorBoard's, or log_metrics(metrics, step), such as Lightning's loggers"
            )
        if every < 1:
            raise ValueError(f"every is {every}: give 1 or more steps")
        self._writer, self._every, self._prefix = writer, every, prefix
        self._steps = 0
        self._failed = False
        self._before: Counters | None = None
        self._sample: GradientSample | None = None

    def reset(self) -> None:
        """Begin again, as counters do: what was since the last point is not drawn."""
        self._before = None

    def begin_bucket(self, first: bool, count: Callable[[], Counters], memories: Memories | None) -> bool:
        """Note that a bucket is about to be summed, the ``first`` of its step or a later one, and at the beginning of
        every so many steps write what was since. ``count`` says what was in all. Returns whether a sample of this
        bucket is wanted."""
        if first and self._steps % self._every == 0:
            counters = replace(count())
            if self._before is not None:
                self._write(counters - self._before, counters, memories)
            self._before = counters
        self._steps += first
        return self._steps % self._every == 0 and self._sample is None

    def take(self, sample: GradientSample) -> None:
        """The sample, of which the sums will be there when the next step begins."""
        self._sample = sample

    def _write(self, done: Counters, counters: Counters, memories: Memories | None) -> None:
        steps = self._every
        values = {
            "bytes_up": done.bytes_out / steps,
            "bytes_down": done.bytes_in / steps,
            "encode_ms": done.encode_s / steps * 1e3,
            "network_ms": done.network_s / steps * 1e3,
            "decode_ms": done.decode_s / steps * 1e3,
            "idle_ms": done.idle_s / steps * 1e3,
            "resent": done.resent / steps,
            "invalid_codes": done.invalid_codes / steps,
            "inner_group": sum(done.inner.values()) / steps,
            "round_trip_ms": counters.rtt_s * 1e3,
        }
        if self._sample is not None:
            values |= self._sample.metrics
            self._sample = None
        if memories:
            errors = [memory.state[MEMORY] for memory in memories.values() if MEMORY in memory.state]
            values["error_memory_norm"] = float(np.sqrt(sum(float(np.vdot(e, e)) for e in errors)))
        self._send({f"{self._prefix}{name}": float(value) for name, value in values.items()})

    def _send(self, values: dict[str, float]) -> None:
        step: Any = self._steps
        try:
            if isinstance(self._writer, MetricsLogger):
                self._writer.log_metrics(values, step)
                return
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        except Exception as error:  # such as of a full disk: no training ends for want of its curves
            if not self._failed:
                log.warning("curves of inagg lack points: %s: %s", type(error).__name__, error)
            self._failed = True
