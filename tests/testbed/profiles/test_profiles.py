"""The profiles: parameter counts of the known networks, their gradients' order, buckets as PyTorch makes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import _DEFAULT_FIRST_BUCKET_BYTES, _compute_bucket_assignment_by_size

from inagg_testbed.profiles import NAMES, profile
from inagg_testbed.profiles.models.gpt2 import GPT2
from inagg_testbed.profiles.models.resnet import Basic, Bottleneck
from inagg_testbed.profiles.profile import BUCKET_BYTES, FIRST_BUCKET_BYTES, Gradient, make_buckets
from inagg_testbed.profiles.trace import make_profile, trace

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "resnet50": 25_557_032,
    "resnet110": 1_727_962,  # shortcuts without parameters, option A of the paper
    "gpt2": 124_439_808,
}
GIGAFLOPS_FORWARD = {"alexnet": 1.43, "vgg11": 15.2, "resnet50": 8.18, "resnet110": 0.506, "gpt2": 291.6}
"""Twice the multiply-accumulates that are published for them."""


@pytest.mark.parametrize("name", NAMES)
def test_a_network_has_the_parameters_that_it_is_known_for(name: str) -> None:
    assert profile(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_does_the_work_that_it_is_known_for(name: str) -> None:
    found = profile(name)
    assert found.forward_flops / 1e9 == pytest.approx(GIGAFLOPS_FORWARD[name], rel=0.005)
    # as much again for the gradients of inputs, and of weights; the first layer's input needs none
    assert 1.8 < found.backward_flops / found.forward_flops <= 2.0


@pytest.mark.parametrize("name", NAMES)
def test_gradients_come_once_each_and_in_time(name: str) -> None:
    gradients = profile(name).gradients
    assert len({g.name for g in gradients}) == len(gradients)
    ready = [g.ready for g in gradients]
    assert ready == sorted(ready)
    assert ready[0] >= 0
    assert ready[-1] == 1.0


def test_gradients_come_in_the_order_of_the_backward_pass() -> None:
    names = [g.name for g in profile("alexnet").gradients]
    assert {*names[:2]} == {"classifier.6.weight", "classifier.6.bias"}
    assert {*names[-2:]} == {"features.0.weight", "features.0.bias"}


def test_weights_that_are_used_twice_are_ready_after_both_uses() -> None:
    assert profile("gpt2").gradients[-1].name == "token.weight"


@pytest.mark.parametrize("name", NAMES)
def test_buckets_are_those_of_torch(name: str) -> None:
    found = profile(name)
    tensors = [torch.empty(g.elements, device="meta") for g in found.gradients]
    limits = [_DEFAULT_FIRST_BUCKET_BYTES, BUCKET_BYTES]
    groups, _ = _compute_bucket_assignment_by_size(tensors, limits)
    assert [b.elements for b in found.buckets()] == [sum(tensors[k].numel() for k in group) for group in groups]
    assert _DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES


def test_a_bucket_is_ready_with_its_last_gradient() -> None:
    gradients = [Gradient("c", 3, 0.1), Gradient("b", 1, 0.5), Gradient("a", 2, 1.0)]
    first, second = make_buckets(gradients, 16, 100)
    assert (first.elements, first.ready) == (4, 0.5)
    assert (second.elements, second.ready) == (2, 1.0)


def test_flops_of_a_layer_are_exact() -> None:
    made = make_profile(1, lambda: nn.Linear(5, 7, bias=False), lambda: torch.zeros(3, 5))
    assert made.forward_flops == 2 * 3 * 5 * 7
    assert made.backward_flops == 2 * 3 * 5 * 7  # no gradient of the input is asked for
    assert made.flops == made.forward_flops + made.backward_flops


def test_a_trace_reads_its_clock_and_leaves_no_gradient() -> None:
    model, ticks = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), iter(range(100))
    seen = trace(model, torch.ones(1, 2), lambda: next(ticks))
    assert [name for name, _, _ in seen.ready][-1].startswith("0.")
    assert sorted(at for _, _, at in seen.ready) == [1, 2, 3, 4]
    assert seen.backward > max(at for _, _, at in seen.ready)
    assert all(p.grad is None for p in model.parameters())


def test_networks_compute_scores_of_the_shape_that_they_promise() -> None:
    assert Bottleneck(8, 4, 2)(torch.zeros(1, 8, 6, 6)).shape == (1, 16, 3, 3)
    assert Basic(4, 8, 2)(torch.zeros(1, 4, 6, 6)).shape == (1, 8, 3, 3)
    assert GPT2(1, 12, 2, 50, 10)(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 50)


def test_a_transformer_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    model = GPT2(2, 12, 2, 50, 10)
    text = torch.arange(8).unsqueeze(0)
    other = text.clone()
    other[0, 5:] = 40
    assert torch.equal(model(text)[:, :5], model(other)[:, :5])
    assert not torch.equal(model(text)[:, 5:], model(other)[:, 5:])
