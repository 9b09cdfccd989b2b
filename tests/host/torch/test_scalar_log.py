"""What `InaggState.log_to` draws."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.host.torch.ranks import equal
from tests.host.torch.world import World
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inagg_host.stats import Counters
from inagg_host.torch import InaggState, inagg_hook
from inagg_host.torch.scalar_log import GradientSample, ScalarLog


class Curves:
    """A writer with TensorBoard's interface."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.points.setdefault(tag, []).append((global_step, scalar_value))


class Lightning:
    """A writer with the interface of Lightning's loggers."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.points.append((step, metrics))


def train(state: InaggState, steps: int, bad: int = -1) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(300, 100, bias=False))
    model.register_comm_hook(state, inagg_hook)
    for step in range(steps):
        model.zero_grad()
        x = torch.randn(1, 300)
        if step == bad:
            x[0, 0] = float("nan")
        loss: Any = model(x).square().sum()
        loss.backward()


def drawn(writer: Any, every: int, steps: int, **options: Any) -> Any:
    with InaggState(min_bytes=0, window=16, **options) as state:
        state.log_to(writer, every)
        train(state, steps)
    return writer.points


def drawn_on_tensorboard() -> dict[str, list[tuple[int, float]]]:
    return dict(drawn(Curves(), 3, 8))


def test_means_of_some_steps_are_drawn(beside: World) -> None:
    for points in beside.run(drawn_on_tensorboard):
        assert {step for of in points.values() for step, _ in of} == {3, 6}
        means = {name.removeprefix("inagg/"): [value for _, value in of] for name, of in points.items()}
        for up in means["bytes_up"]:
            assert 30_000 < up < 36_000, "a byte for each of 30,000 values, scales and headers"
        assert all(0.2 < error < 0.4 for error in means["rounding_error"]), "nat8: less than the root of an eighth"
        assert means["share_nan"] == means["invalid_codes"] == means["inner_group"] == [0.0, 0.0]
        assert min(means["encode_ms"] + means["decode_ms"] + means["network_ms"]) > 0
        assert max(means["share_rounded_to_zero"]) < 1e-3


def drawn_by_lightning() -> list[tuple[int, dict[str, float]]]:
    return list(drawn(Lightning(), 2, 3, compressor="ef+topk:k=0.01"))


def test_lightnings_loggers_get_all_at_once_and_the_norm_of_the_memory(beside: World) -> None:
    for points in beside.run(drawn_by_lightning):
        ((step, metrics),) = points
        assert step == 2
        assert metrics["inagg/error_memory_norm"] > 0
        assert "inagg/rounding_error" not in metrics


def drawn_with_nan() -> list[float]:
    curves = Curves()
    with InaggState(min_bytes=0, window=16) as state:
        state.log_to(curves, 1)
        train(state, 3, bad=1)
        state.log_to(None)
        train(state, 2)
    return [value for _, value in curves.points["inagg/share_nan"]]


def test_nan_is_seen(beside: World) -> None:
    first, second = equal(beside.run(drawn_with_nan))
    assert first == 0
    assert second > 0


def test_a_point_is_the_mean_of_the_steps_since_the_one_before() -> None:
    curves, counters = Curves(), Counters()
    log = ScalarLog(curves, 2, "")
    for _ in range(5):
        for first in (True, False):  # buckets of a step
            log.begin_bucket(first, lambda: counters, None)
        counters.resent += 4
        counters.inner = {"small": counters.inner.get("small", 0) + 6}
    assert curves.points["resent"] == [(2, 4.0), (4, 4.0)]
    assert curves.points["inner_group"] == [(2, 6.0), (4, 6.0)]


def test_counters_that_begin_anew_are_not_drawn_as_less_than_nothing() -> None:
    curves = Curves()
    log = ScalarLog(curves, 1, "")
    for resent in (5, 7):
        log.begin_bucket(True, partial(Counters, resent=resent), None)
    log.reset()
    for resent in (0, 3):
        log.begin_bucket(True, partial(Counters, resent=resent), None)
    assert [value for _, value in curves.points["resent"]] == [2.0, 3.0]


def test_of_each_point_one_bucket_is_a_sample() -> None:
    curves, wanted = Curves(), []
    log = ScalarLog(curves, 2, "")
    for step in range(5):
        for first in (True, False):
            wanted.append(log.begin_bucket(first, Counters, None))
            if wanted[-1]:
                sample = GradientSample(torch.ones(1))
                sample.metrics = {"share_nan": float(step)}
                log.take(sample)
    assert wanted == [False, False, True, False] * 2 + [False, False]
    assert curves.points["share_nan"] == [(2, 1.0), (4, 3.0)]


def test_the_share_that_was_rounded_to_zero_is_of_values_that_were_not_zero() -> None:
    tensor = torch.tensor([0.0, 0.0, 1.0, 2.0])
    sample = GradientSample(tensor)
    sample.contributed[3] = 2.0
    sample.compute()
    assert sample.metrics == {"rounding_error": pytest.approx(0.2**0.5), "share_rounded_to_zero": 0.5, "share_nan": 0.0}


def test_what_is_no_writer_is_refused() -> None:
    with pytest.raises(TypeError, match="list is no writer"):
        ScalarLog([], 1, "")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every is 0"):
        ScalarLog(Curves(), 0, "")
