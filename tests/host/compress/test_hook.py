"""Compressors in the DDP communication hook."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import digest, equal
from tests.host.torch.test_ddp import SMALL_BUCKETS_MB, backward
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.compress import Bound, Compressor, Contraction, Floats, Key
from inagg_host.compress.feedback import MEMORY
from inagg_host.config import ConfigError
from inagg_host.torch import InaggState, inagg_hook
from inagg_testbed.training import make_model

EVERY: list[tuple[str, str | None, set[str]]] = [
    ("natural", "nat8", set()),
    ("ef+natural_dithering:p=inf,s=7,shared=true", "nat4", set()),
    ("natural_dithering:p=inf,s=7,shared=true", "nat4", set()),
    ("dithering:p=inf,s=127,shared=true", "dith8", set()),
    ("terngrad", "tern", set()),
    ("terngrad:scaler=block", "tern", set()),
    ("randk:k=0.1", "nat8", set()),
    ("ef+randk:k=0.1", "fix32", set()),
    ("ultrasparse:k=0.5", "fix32", set()),
    ("ef+blocktopk:k=0.1,block=64", "nat8", set()),
    ("natural_dithering:p=inf,s=7,shared=true+randk:k=0.1", "nat4-nat8", set()),
    ("qsgd:s=4", None, {"gather"}),
    ("natural_dithering:p=2,s=8", None, {"gather"}),
    ("ef+topk:k=0.01", None, {"gather"}),
    ("ef+natural+topk:k=0.01", None, {"gather"}),
]

COMPILES_S = 400.0
"""The kernels of all formats, on a busy machine."""


def hooked(state: InaggState, bucket_mb: float = SMALL_BUCKETS_MB) -> DistributedDataParallel:
    model = DistributedDataParallel(make_model(0), bucket_cap_mb=bucket_mb)
    model.register_comm_hook(state, inagg_hook)
    return model


def train(model: DistributedDataParallel, steps: range) -> list[str]:
    """Digests of the parameters after each step; data differ by rank and step."""
    optimizer, digests = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in steps:
        rng = np.random.default_rng([step, dist.get_rank()])
        inputs = torch.from_numpy(rng.standard_normal((8, 1, 8, 8)).astype(np.float32))
        labels = torch.from_numpy(rng.integers(0, 10, 8))
        optimizer.zero_grad()
        backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
        digests.append(digest(*model.parameters()))
    return digests


def with_each() -> list[tuple[list[str], dict[str, int], int]]:
    results = []
    for compressor, fmt, _ in EVERY:
        with InaggState(compressor=compressor, format=fmt, min_bytes=0) as state:
            digests = train(hooked(state), range(3))
            results.append((digests, state.counters.inner, state.counters.elements))
    return results


def test_each_compressor_trains_with_the_same_bits_on_all_ranks(beside: World) -> None:
    for (digests, inner, elements), (compressor, _, gathered) in zip(
        equal(beside.run(with_each, timeout_s=COMPILES_S)), EVERY, strict=True
    ):
        least = 2 if "ultrasparse" in compressor else 3  # which in some steps sends nothing
        assert len(set(digests)) >= least, compressor
        assert set(inner) == gathered, compressor
        assert (elements > 0) == (not gathered), compressor


# --- state by parameter ---


def by_buckets(bucket_mb: float) -> tuple[list[str], int]:
    with InaggState(compressor="ef+topk:k=0.05", min_bytes=0, seed=1) as state:
        digests = train(hooked(state, bucket_mb), range(4))
        return digests, state.counters.inner["gather"]


def test_buckets_that_are_cut_anew_lose_nothing(beside: World) -> None:
    """DDP sends the whole model as one bucket at first, and then many."""
    small, large = beside.run(by_buckets, 0.02), beside.run(by_buckets, 25.0)
    assert equal(small)[0] == equal(large)[0]
    assert small[0][1] >= 7
    assert large[0][1] <= 5


def interrupted() -> tuple[list[str], list[str], int]:
    """Six steps; and three, a checkpoint of model and state, and three more."""
    options: dict[str, Any] = {"compressor": "ef+natural+topk:k=0.05", "min_bytes": 0}
    with InaggState(seed=7, **options) as state:
        whole = train(hooked(state), range(6))
    with InaggState(seed=7, **options) as state:
        model = hooked(state)
        train(model, range(3))
        saved = io.BytesIO()
        torch.save({"model": model.module.state_dict(), "state": state}, saved)
    saved.seek(0)
    content = torch.load(saved, weights_only=False)
    with content["state"] as restored:
        model = hooked(restored)
        model.module.load_state_dict(content["model"])
        return whole[3:], train(model, range(3, 6)), len(saved.getvalue())


def test_a_restored_state_goes_on_with_the_same_bits(beside: World) -> None:
    for whole, restored, _ in beside.run(interrupted):
        assert restored == whole


# --- another one in mid-run ---


def switching() -> tuple[list[str], list[dict[str, int]], list[bool]]:
    digests, inner, remembers = [], [], []
    with InaggState(compressor="ef+topk:k=0.05", min_bytes=0) as state:
        model, step = hooked(state), 0

        def go() -> None:
            nonlocal step
            digests.extend(train(model, range(step, step + 2)))
            step += 2
            inner.append(state.counters.inner)
            assert state._compression is not None
            memories = state._compression.memories.values()
            remembers.append(any(MEMORY in memory.state for memory in memories))

        go()
        state.use("ef+randk:k=0.1", format="nat8")
        go()
        state.use("ef:damping=0.5+terngrad", format="tern")
        go()
        state.use("natural_dithering:p=inf,s=7,shared=true", format="nat4")
        go()
        state.use("ef+natural", format="nat8")
        go()
        state.use(None, format="dith8")
        go()
        with pytest.raises(ConfigError, match="no compressor is called 'best'"):
            state.use("best")
        go()
    return digests, inner, remembers


def test_format_and_compressor_change_in_mid_run(beside: World) -> None:
    digests, inner, remembers = equal(beside.run(switching))
    assert len(set(digests)) == 14
    assert remembers == [True, True, True, False, True, False, False]
    assert all(counts == inner[0] for counts in inner), "gathers are those of the beginning"


def released() -> tuple[list[float], list[float], dict[str, int]]:
    """Two steps with gradients of ones: top-k of one element, then a bucket that is too small to be compressed."""
    with InaggState(compressor="ef+topk:k=1", min_bytes=0) as state:
        model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        model.register_comm_hook(state, inagg_hook)
        gradients = []
        for _ in range(2):
            model.zero_grad()
            backward(model(torch.ones(1, 4)).sum())
            weights = next(model.parameters()).grad
            assert weights is not None
            gradients.append(weights[0].tolist())
            state.use("ef+topk:k=1", min_bytes=1 << 20)
        return gradients[0], gradients[1], state.counters.inner


def test_a_bucket_that_is_not_compressed_gets_what_was_remembered(beside: World) -> None:
    first, second, inner = equal(beside.run(released))
    assert first == [1.0, 0.0, 0.0, 0.0]
    assert second == [1.0, 2.0, 2.0, 2.0]
    assert inner == {"gather": 1, "small": 1}


def leave_out() -> tuple[list[float], list[float], dict[str, int], dict[str, int]]:
    """Gradients of two layers, of which the second is left out; then of both left out."""
    network = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(1.0)
    with InaggState(compressor="topk:k=1", min_bytes=0, plain=network[1].parameters()) as state:
        model = DistributedDataParallel(network)
        model.register_comm_hook(state, inagg_hook)
        backward(model(torch.ones(1, 4) * (1 + 2 * dist.get_rank())).sum())
        first, second = (p.grad.flatten().tolist() for p in network.parameters() if p.grad is not None)
        some = state.counters.inner
        state.plain = tuple(network.parameters())
        backward(model(torch.ones(1, 4)).sum())
        return first, second, some, state.counters.inner


def test_parameters_can_be_left_out(beside: World) -> None:
    first, second, some, then = equal(beside.run(leave_out))
    assert first == [2.0, *[0.0] * 7], "the largest of each rank"
    assert second == [8.0, 8.0], "the mean of 4 and 12"
    assert some == {"gather": 1, "plain": 1}
    assert then == {"gather": 1, "plain": 2}


class Sparse(torch.nn.Module):
    """An embedding whose gradient is sparse, before a layer whose is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 16, sparse=True)
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embedding(x))
        return found


def sparse_gradients() -> tuple[list[float], dict[str, int]]:
    torch.manual_seed(0)
    network = Sparse()
    with InaggState(compressor="ef+randk:k=0.5", min_bytes=0, seed=1) as state:
        model = DistributedDataParallel(network)
        model.register_comm_hook(state, inagg_hook)
        for _ in range(2):
            model.zero_grad()
            backward(model(torch.arange(5)).sum())
        gradient = network.embedding.weight.grad
        assert gradient is not None
        assert gradient.layout is torch.sparse_coo
        wanted = network.head.weight.sum(0).tolist()
        assert gradient.to_dense()[3].tolist() == pytest.approx(wanted)
        return wanted, state.counters.inner


def test_sparse_gradients_are_averaged_by_the_process_group(beside: World) -> None:
    _, inner = equal(beside.run(sparse_gradients))
    assert inner["sparse"] == 2


# --- types and mistakes ---


def halves(dtype: torch.dtype) -> tuple[str, bool]:
    with InaggState(compressor="ef+natural", min_bytes=0) as state:
        model = DistributedDataParallel(torch.nn.Linear(100, 3, dtype=dtype))
        model.register_comm_hook(state, inagg_hook)
        backward(model(torch.ones(1, 100, dtype=dtype) * (1 + dist.get_rank())).sum())
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        # natural compression of 1, 2 and 3 is off by a third at most
        return digest(*gradients), all(bool(((g / 1.5 - 1).abs() < 0.4).all() or (g == 1).all()) for g in gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_gradients_of_other_types(beside: World, dtype: torch.dtype) -> None:
    _, near = equal(beside.run(halves, dtype))
    assert near


@dataclass(frozen=True)
class Broken(Compressor):
    """Fails in its second use."""

    def bound(self, d: int) -> Bound:
        return Contraction(1.0)

    def compress(self, x: Floats, key: Key) -> bytes:
        if key.step == 1:
            raise OSError("the dictionary is gone")
        return x.tobytes()

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        return np.frombuffer(data, dtype)


def break_down() -> tuple[bool, list[float]]:
    with InaggState(compressor=Broken(), min_bytes=0) as state:
        model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        model.register_comm_hook(state, inagg_hook)
        message = ""
        for _ in range(3):
            model.zero_grad()
            try:
                backward(model(torch.ones(1, 4)).sum())
            except RuntimeError as error:
                message = str(error)
        weights = next(model.parameters()).grad
        assert weights is not None
        return "the dictionary is gone" in message, weights[0].tolist()


def test_an_error_in_a_compressor_is_one_of_backward_and_the_next_step_works(beside: World) -> None:
    assert equal(beside.run(break_down)) == (True, [1.0] * 4)


@pytest.mark.gpu
def test_gradients_on_a_gpu(beside: World) -> None:
    """The same bits as on the CPU."""
    on_cpu, on_gpu = (equal(beside.run(average_on, device)) for device in ("cpu", "cuda"))
    assert on_gpu == on_cpu


def average_on(device: str) -> list[list[float]]:
    with InaggState(compressor="ef+natural+topk:k=0.1", min_bytes=0, seed=3) as state:
        model = DistributedDataParallel(torch.nn.Linear(100, 3).to(device))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model.register_comm_hook(state, inagg_hook)
        gradients = []
        for step in range(3):
            model.zero_grad()
            inputs = np.random.default_rng([step, dist.get_rank()]).standard_normal((1, 100)).astype(np.float32)
            backward(model(torch.from_numpy(inputs).to(device)).sum())
            gradients.append([float(g) for p in model.parameters() if p.grad is not None for g in p.grad.flatten()])
        return gradients


class Odd(torch.nn.Module):
    """Has parameters of complex numbers, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(20, 10, dtype=torch.complex64))
        self.empty = torch.nn.Parameter(torch.ones(0, 10))
        self.bias = torch.nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x @ self.weight).sum(-1) + self.bias + self.empty.sum()


def gradients_of_odd(compressor: str, plain: bool) -> tuple[list[float], list[float]]:
    """Real and imaginary parts, where each rank has its number plus 1 as gradient of either."""
    model = DistributedDataParallel(Odd())
    apart = [model.module.weight] if plain else []
    with InaggState(compressor=compressor, format="fix32", min_bytes=0, plain=apart) as state:
        model.register_comm_hook(state, inagg_hook)
        backward(model(torch.full((1, 20), 1.0 + dist.get_rank(), dtype=torch.complex64)).sum())
    parts = torch.view_as_real(model.module.weight.grad)
    return parts.amin((0, 1)).tolist(), parts.amax((0, 1)).tolist()


@pytest.mark.parametrize("plain", [False, True])
def test_complex_and_empty_parameters_are_averaged_whole(beside: World, plain: bool) -> None:
    for compressor in ("topk:k=1.0", "blocktopk"):
        least, most = equal(beside.run(gradients_of_odd, compressor, plain))
        np.testing.assert_allclose([np.abs(least), np.abs(most)], 1.5, rtol=1e-6)


def refused() -> list[str]:
    messages = []
    for options in (
        {"compressor": "best"},
        {"compressor": "topk"},
        {"compressor": "terngrad", "format": "nat8"},
    ):
        try:
            InaggState(**options)  # type: ignore[arg-type]
        except ConfigError as error:
            messages.append(str(error))
    return messages


def test_mistakes_are_told_before_anything_is_joined(beside: World) -> None:
    unknown, *others = equal(beside.run(refused))
    assert unknown.startswith("no compressor is called 'best': there are ef, blocktopk, ")
    assert others == [
        "topk cannot do without options: it takes k (needed)",
        "format 'nat8': TernGrad(clip=2.5, scaler='layer') can be summed in tern",
    ]


def go_on_after_a_step_that_failed_on_one(way: str) -> str:
    """The gradients of a step after one that rank 1 did not make, with the same state in another job, or another state
    that has what was saved; rand-k's coordinates are drawn by all ranks from the step."""
    compressor = "ef+randk:k=0.1"

    def step(model: torch.nn.Module) -> None:
        model.zero_grad()
        backward(model(torch.ones(4, 64)).square().sum())

    def make() -> tuple[InaggState, torch.nn.Module, DistributedDataParallel]:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        state, model = InaggState(compressor=compressor, min_bytes=0), DistributedDataParallel(layers)
        model.register_comm_hook(state, inagg_hook)
        return state, layers, model

    state, layers, model = make()
    for _ in range(2):  # after the first one DDP cuts buckets anew, for which ranks talk to each other
        step(model)
    try:
        if dist.get_rank() == 1:
            raise KeyError("a bad batch")
        step(model)
    except (KeyError, RuntimeError):
        state.close()  # the job ends for all
    dist.barrier()
    if way == "used again":
        state.use(compressor)
        model = DistributedDataParallel(layers)
        model.register_comm_hook(state, inagg_hook)
    else:
        saved = state.state_dict()
        state, layers, model = make()
        state.load_state_dict(saved)
    step(model)
    state.close()
    return digest(*(p.grad for p in layers.parameters() if p.grad is not None))


@pytest.mark.parametrize("way", ["used again", "loaded"])
def test_after_a_step_that_failed_on_some_ranks_all_draw_the_same_coordinates(beside: World, way: str) -> None:
    equal(beside.run(go_on_after_a_step_that_failed_on_one, way))


def be_a_step_ahead() -> str:
    """What ranks are told of a step that is another one on each."""
    model = torch.nn.Linear(64, 64)
    with InaggState(compressor="ef+randk:k=0.1", min_bytes=0) as state:
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(state, inagg_hook)
        for _ in range(2):
            backward(wrapped(torch.ones(4, 64)).sum())
        assert state._compression is not None
        for memory in state._compression.memories.values():
            memory.step += dist.get_rank()
        with pytest.raises(RuntimeError) as caught:
            backward(wrapped(torch.ones(4, 64)).sum())
    dist.barrier()
    return str(caught.value)


def test_ranks_at_different_steps_are_an_error_and_not_sums_of_different_coordinates(beside: World) -> None:
    said = beside.run(be_a_step_ahead)
    assert any("another rank reduces something else" in why for why in said)


def leave_out_all_but_an_empty_one() -> float:
    """A bucket of which but an empty parameter is to be compressed."""
    model = torch.nn.Linear(20, 10, bias=False)
    model.register_parameter("empty", torch.nn.Parameter(torch.zeros(0)))
    with InaggState(compressor="ef+topk:k=0.1", plain=[model.weight], min_bytes=0) as state:
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        wrapped.register_comm_hook(state, inagg_hook)
        backward(wrapped(torch.full((1, 20), 1.0 + dist.get_rank())).sum())
    assert model.weight.grad is not None
    return float(model.weight.grad.min())


def test_of_an_empty_parameter_there_is_nothing_to_compress(beside: World) -> None:
    assert equal(beside.run(leave_out_all_but_an_empty_one)) == 1.5
