"""Mem-SGD: its invariant, closed forms, checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from inagg_host.compress import Compressor, Natural, RandK, TopK, UltraSparse
from inagg_host.compress.optim.memory import MemSGD, Vector
from inagg_host.compress.optim.rates import InverseTime, SquaredTime

RATE = InverseTime(2.0, 0.1, 30.0)


def parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6,), (4, 5))]


def give_gradients(params: list[torch.Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


@pytest.mark.parametrize(
    "compressor", [TopK(1), TopK(0.5), RandK(2, scaled=False), UltraSparse(0.5), Natural()], ids=str
)
@pytest.mark.parametrize("rate", [0.1, RATE], ids=["constant", "falling"])
def test_virtual_iterate_is_the_iterate_minus_the_memory(
    compressor: Compressor, rate: float | Callable[[int], float]
) -> None:
    """x~ = x_0 - sum of eta_t grad = x - m: the sign is that of what has not been applied yet."""
    params = parameters()
    virtual = [p.clone() for p in params]
    optimizer = MemSGD(params, rate, compressor, seed=5)
    for t in range(40):
        give_gradients(params, t)
        for v, p in zip(virtual, params, strict=True):
            assert p.grad is not None
            v -= (rate(t) if callable(rate) else rate) * p.grad
        optimizer.step()
        for v, p in zip(virtual, params, strict=True):
            assert torch.allclose(v, p - optimizer.memory(p), rtol=1e-12, atol=1e-12)
    assert any(optimizer.memory(p).any() for p in params)


def test_with_everything_sent_it_is_sgd() -> None:
    ours, theirs = parameters(), parameters()
    optimizer, sgd = MemSGD(ours, 0.1, TopK(1.0)), torch.optim.SGD(theirs, lr=0.1)
    for t in range(5):
        for params, each in ((ours, optimizer), (theirs, sgd)):
            give_gradients(params, t)
            each.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-14)
        assert not optimizer.memory(a).any()


def test_step_size_enters_the_memory_with_the_gradient() -> None:
    """Two steps by hand: what waits in the memory keeps the step size of the day that it came."""
    x = torch.zeros(2, dtype=torch.float64)
    optimizer = MemSGD([x], lambda t: [1.0, 0.1][t], TopK(1))
    x.grad = torch.tensor([3.0, 2.0], dtype=torch.float64)
    optimizer.step()
    assert x.tolist() == [-3.0, 0.0]
    assert optimizer.memory(x).tolist() == [0.0, 2.0]
    optimizer.step()  # memory [0, 2] + 0.1 * [3, 2] = [0.3, 2.2]
    assert x.tolist() == pytest.approx([-3.0, -2.2])
    assert optimizer.memory(x).tolist() == pytest.approx([0.3, 0.0])


def test_average_weighs_the_iterates_before_each_step() -> None:
    x = torch.tensor([1.0], dtype=torch.float64)
    optimizer = MemSGD([x], 1.0, TopK(1), weight=SquaredTime(1.0))
    iterates = []
    for _ in range(4):
        iterates.append(x.item())
        x.grad = torch.tensor([0.5], dtype=torch.float64)
        optimizer.step()
    weights = [1.0, 4.0, 9.0, 16.0]
    expected = sum(w * i for w, i in zip(weights, iterates, strict=True)) / sum(weights)
    assert optimizer.average(x).item() == pytest.approx(expected)


def test_there_is_no_average_without_a_weight() -> None:
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="give MemSGD a weight"):
        MemSGD([x], 0.1, TopK(1)).average(x)


def test_memory_keeps_what_was_not_contributed_and_the_mean_is_applied() -> None:
    """Two workers; the network takes this one's 3 as 2.5, and the other has sent 1.5."""
    x = torch.zeros(2, dtype=torch.float64)

    def exchange(number: int, entering: Vector) -> tuple[Vector, Vector]:
        assert (number, entering.tolist()) == (0, [3.0, 1.0])
        contributed = np.array([2.5, 0.0])
        return contributed, (contributed + np.array([1.5, 0.0])) / 2

    optimizer = MemSGD([x], 1.0, exchange=exchange)
    x.grad = torch.tensor([3.0, 1.0], dtype=torch.float64)
    optimizer.step()
    assert x.tolist() == [-2.0, 0.0]
    assert optimizer.memory(x).tolist() == [0.5, 1.0]


def test_a_checkpoint_goes_on_to_the_same_bits() -> None:
    first = parameters()
    optimizer = MemSGD(first, RATE, RandK(2, scaled=False), seed=9, weight=SquaredTime(1.0))
    for t in range(3):
        give_gradients(first, t)
        optimizer.step()
    second = [p.clone() for p in first]
    restored = MemSGD(second, RATE, RandK(2, scaled=False), seed=9, weight=SquaredTime(1.0))
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # else it would share the tensors
    for params, each in ((first, optimizer), (second, restored)):
        give_gradients(params, 3)
        each.step()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(optimizer.memory(a), restored.memory(b))
        assert torch.equal(optimizer.average(a), restored.average(b))


def test_a_parameter_without_a_gradient_keeps_its_number() -> None:
    """By which ranks know each other's, and memories are kept."""
    numbers = []

    def exchange(number: int, entering: Vector) -> tuple[Vector, Vector]:
        numbers.append(number)
        return entering, entering

    params = [torch.zeros(1), torch.zeros(1)]
    optimizer = MemSGD(params, 1.0, exchange=exchange)
    params[1].grad = torch.ones(1)
    optimizer.step()
    assert numbers == [1]


def test_a_step_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        MemSGD([torch.zeros(1)], 0.0, TopK(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_parameters_of_other_types_are_refused_at_once(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"a parameter of {dtype}: give float32 or float64"):
        MemSGD([torch.zeros(1, dtype=dtype)], 0.1, TopK(1))
    optimizer = MemSGD([torch.zeros(1)], 0.1, TopK(1))
    with pytest.raises(ValueError, match=f"a parameter of {dtype}"):
        optimizer.add_param_group({"params": [torch.zeros(1, dtype=dtype)]})
    assert len(optimizer.param_groups) == 1


def test_compressor_and_exchange_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="give a compressor, or an exchange"):
        MemSGD([torch.zeros(1)], 0.1)


def test_rand_k_is_taken_unscaled() -> None:
    """Scaled by d/k what is left in the memory would be -(d/k - 1) of what was sent, and grow without end."""
    x = torch.ones(64)
    optimizer = MemSGD([x], 0.1, RandK(8), seed=3)
    for _ in range(300):
        x.grad = x.clone()
        optimizer.step()
    assert float(x.norm()) < 1e-3


def test_a_compressor_can_be_given_by_name() -> None:
    assert MemSGD([torch.zeros(4)], 0.1, "topk:k=2").compressor == TopK(2)
    with pytest.raises(ValueError, match="no compressor is called 'topq'"):
        MemSGD([torch.zeros(4)], 0.1, "topq:k=2")
