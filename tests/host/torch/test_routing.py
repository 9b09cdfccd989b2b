"""What the switch carries and what the inner group does, and under which reason."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import ReduceOp
from torch.testing._internal.two_tensor import TwoTensor

from inagg_host.nickname import script_name
from inagg_host.torch.job import PLACE_CHARS_MAX, GroupJob, _job_name
from inagg_wire.names import NAME_CHARS_MAX


def make_job(workers: int = 2, min_bytes: int = 100) -> GroupJob:
    """A job that nobody joins."""

    given = {"switch": "127.0.0.1:1", "min_bytes": min_bytes}
    return GroupJob(given, 0, workers, timedelta(seconds=1), "world", lambda data: [data] * workers, HashStore())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
def test_sums_and_means_of_floats_are_carried(dtype: torch.dtype, op: ReduceOp) -> None:
    assert make_job().why_not(torch.ones(100, dtype=dtype), op) is None


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(100, dtype=torch.int32), "dtype-int32"),
        (torch.ones(100, dtype=torch.bool), "dtype-bool"),
        (torch.ones(100, dtype=torch.complex64), "dtype-complex64"),
        (torch.ones(24), "small"),
        (torch.ones(0), "small"),
        (torch.ones(100).to_sparse(), "sparse"),
        (torch.ones(100, device="meta"), "device-meta"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_tensors_are_not(tensor: torch.Tensor, reason: str) -> None:
    assert make_job().why_not(tensor, ReduceOp.SUM) == reason


@pytest.mark.parametrize(("hip", "reason"), [(None, None), ("7.0.51831", "device-rocm")])
def test_cuda_tensors_are_carried_but_of_rocm(
    hip: str | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr("inagg_host.torch.job.has_no_memory", lambda tensor: False)
    with FakeTensorMode():
        tensor = torch.empty(100, device="cuda")
    assert make_job().why_not(tensor, ReduceOp.SUM) == reason
    assert make_job().why_not(torch.ones(100), ReduceOp.SUM) is None


def test_tensors_without_memory_are_not() -> None:
    """As small ones, which Gloo sums by operators."""
    job, reasons = make_job(), list[str | None]()

    def note(values: torch.Tensor) -> torch.Tensor:
        reasons.append(job.why_not(values, ReduceOp.SUM))
        return values.sum()

    torch.func.grad(note)(torch.ones(100))
    with FakeTensorMode():
        note(torch.ones(100))
    two: Any = TwoTensor  # without types
    note(two(torch.ones(100), torch.ones(100)))
    note(torch.nn.Parameter(torch.ones(100)))
    assert reasons == ["no-memory"] * 3 + [None]


@pytest.mark.parametrize("op", ["MAX", "MIN", "PRODUCT", "BAND"])
def test_other_reductions_are_not(op: str) -> None:
    assert make_job().why_not(torch.ones(100), getattr(ReduceOp, op)) == f"op-{op.lower()}"


def test_a_premultiplied_sum_is_not() -> None:
    op = torch.distributed._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]
    assert make_job().why_not(torch.ones(100), op) == "op-premul_sum"


def test_the_threshold_is_in_bytes() -> None:
    job = make_job(min_bytes=100)
    assert job.why_not(torch.ones(25), ReduceOp.SUM) is None
    assert job.why_not(torch.ones(25, dtype=torch.float16), ReduceOp.SUM) == "small"


def test_without_a_threshold_only_the_empty_tensor_is_small() -> None:
    job = make_job(min_bytes=0)
    assert job.why_not(torch.ones(1), ReduceOp.SUM) is None
    assert job.why_not(torch.ones(0), ReduceOp.SUM) == "small"


def test_a_group_of_one_needs_no_switch() -> None:
    assert make_job(workers=1).why_not(torch.ones(100), ReduceOp.SUM) == "one-rank"


@pytest.mark.parametrize("label", ["world", "0-1-2", "-".join(map(str, range(32))), "näme with spaces"])
def test_a_jobs_name_is_one_that_a_switch_takes(label: str) -> None:
    name = _job_name("torch", label)
    assert len(name) <= NAME_CHARS_MAX
    assert all((letter.isalnum() and letter.isascii()) or letter in "._:/-" for letter in name)


@pytest.mark.parametrize("label", ["world", "-".join(map(str, range(32)))])
def test_of_a_long_name_a_jobs_has_the_beginning_and_a_digest(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_host.torch.job.nickname", lambda: "mint-otter-417")
    names = [_job_name("train-" + "a" * 50 + last, label) for last in "xy"]
    assert names[0] != names[1]
    for name in names:
        assert re.match(r"train-a+-[0-9a-f]{8}-mint-otter-417", name)
        assert len(name) <= NAME_CHARS_MAX - PLACE_CHARS_MAX


def test_groups_whose_names_begin_alike_can_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_host.torch.job.nickname", lambda: "mint-otter-417")
    ranks = "-".join(map(str, range(32)))
    for base in ("train", "a" * 60):
        one, other = (_job_name(base, f"{ranks}-{last}") for last in (32, 33))
        assert one != other
        assert "-mint-otter-417/0-1-2" in one


def test_no_two_jobs_have_one_name() -> None:
    """By far: see `inagg_host.nickname.NUMBERS`."""
    assert len({_job_name("torch", "world") for _ in range(100)}) >= 98


def test_a_jobs_name_can_be_said_and_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/train gpt.py"])
    assert script_name("torch") == "train-gpt"
    assert re.fullmatch(r"train-gpt-[a-z]{2,6}-[a-z]{2,6}-\d{1,3}", _job_name("train-gpt", "world"))
    assert re.fullmatch(r"train-[a-z]{2,6}-[a-z]{2,6}-\d{1,3}/0-2", _job_name("train", "0-2"))


@pytest.mark.parametrize(
    ("argv", "name"),
    [("-c", "torch"), ("/x/my_package/__main__.py", "my_package"), ("", "torch"), ("/x/_train_.py", "train")],
)
def test_what_is_no_script_has_a_name_all_the_same(argv: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [argv])
    assert script_name("torch") == name


def test_a_job_that_was_never_joined_can_be_closed() -> None:
    job = make_job()
    job.close()
    job.close()
    assert job.counters.operations == 0
