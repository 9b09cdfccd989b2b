"""Buckets of gradients on their way through a compressor, where they are and where they are needed."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch._C._distributed_c10d import GradBucket

from inagg_host.compress import Floats
from inagg_host.torch.compressed import Apart, CompressedSums, Compression, Streams, choose
from inagg_host.torch.gpu.stream import Event

SOON_S = 60.0


class OneRank:
    """The sums of a job of one rank: its own values."""

    timeout_s = SOON_S

    def submit(self, values: npt.NDArray[Any], out: npt.NDArray[Any], **options: Any) -> SimpleNamespace:
        out[:] = values
        return SimpleNamespace(result=lambda: out)


def bucket_of(buffer: torch.Tensor) -> GradBucket:
    """A bucket of one parameter."""
    parameter = torch.nn.Parameter(torch.zeros_like(buffer))
    bucket = SimpleNamespace(buffer=lambda: buffer, parameters=lambda: [parameter], gradients=lambda: [buffer])
    return cast(GradBucket, bucket)


def averaged(buffer: torch.Tensor) -> torch.Tensor:
    """``buffer``, after "natural" has compressed what was in it."""
    sums = CompressedSums(Compression(seed=1), cast(Any, OneRank()), rank=0, workers=1, gather=None)
    compressor = choose("natural")
    assert compressor is not None
    bucket = bucket_of(buffer)
    try:
        sums.average(compressor, bucket, Apart(bucket, [False], cast(Any, None)), 1).get_future().wait()
    finally:
        sums.close()
    return buffer


def test_who_submits_a_bucket_does_not_wait_for_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, fetch = threading.Event(), Streams.fetch

    def late(streams: Streams, buffer: torch.Tensor, wide: torch.dtype, ready: Event) -> Floats:
        assert computed.wait(SOON_S)
        return fetch(streams, buffer, wide, ready)

    monkeypatch.setattr(Streams, "fetch", late)
    sums = CompressedSums(Compression(seed=1), cast(Any, OneRank()), rank=0, workers=1, gather=None)
    compressor = choose("natural")
    assert compressor is not None
    bucket = bucket_of(torch.arange(100.0))
    work = sums.average(compressor, bucket, Apart(bucket, [False], cast(Any, None)), 1)
    assert not work.is_completed()
    computed.set()
    work.get_future().wait()
    sums.close()


def test_a_job_ends_where_one_rank_has_no_memory_for_the_values_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others would sum that bucket with this rank's next one."""

    def fetch(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Streams, "fetch", fetch)
    ended = list[str]()
    monkeypatch.setattr(OneRank, "close", lambda _, reason, end: ended.append(reason), raising=False)
    with pytest.raises(RuntimeError, match="out of memory"):
        averaged(torch.arange(100.0))
    assert ended == ["a bucket's values did not come: OutOfMemoryError: CUDA out of memory"]


def test_closing_waits_for_a_gather_no_longer_than_an_operation_may_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Gloo's goes on for its own time limit, though the job has ended: another rank sleeps."""
    monkeypatch.setattr(OneRank, "timeout_s", 0.1)
    gathers, over = threading.Event(), threading.Event()

    def gather(data: bytes) -> list[bytes]:
        gathers.set()
        assert over.wait(SOON_S)
        return [data]

    sums = CompressedSums(Compression(seed=1), cast(Any, OneRank()), rank=0, workers=1, gather=gather)
    compressor = choose("topk:k=0.1")
    assert compressor is not None
    work = sums.average(compressor, bucket_of(torch.arange(100.0)), cast(Any, SimpleNamespace(mask=[False])), 1)
    assert gathers.wait(SOON_S)
    began_s = time.monotonic()
    sums.close()
    assert time.monotonic() - began_s < SOON_S / 2
    assert not work.is_completed()
    assert "a gather still waits for another rank" in caplog.text
    over.set()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_of_16_bits_are_compressed_as_float32(dtype: torch.dtype) -> None:
    values = torch.arange(100.0) / 8
    assert torch.equal(averaged(values.to(dtype)).float(), averaged(values.clone()).to(dtype).float())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_bucket_on_a_gpu_becomes_what_it_would_on_the_cpu(dtype: torch.dtype) -> None:
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(100_000)).to(dtype)
    assert torch.equal(averaged(values.cuda()).cpu(), averaged(values.clone()))
