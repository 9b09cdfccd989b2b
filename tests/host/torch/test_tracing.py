"""What an operation took, and its phases in a trace of torch.profiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from inagg_host.torch.tensors import TensorAllReduce
from inagg_wire.scale import FloatType

ELEMENTS = 100_000


@pytest.fixture
def alone(switch: str) -> Iterator[TensorAllReduce]:
    """A job of one rank."""
    with TensorAllReduce(switch=switch, job="tracing", rank=0, workers=1) as all_reduce:
        yield all_reduce


def test_a_work_tells_what_it_took(alone: TensorAllReduce) -> None:
    works = [alone.arrays.submit(torch.ones(ELEMENTS).numpy()) for _ in range(2)]
    for work in works:
        work.result()
    took = [work.counters for work in works]
    blocks = alone.arrays.job(FloatType.FLOAT32).blocks(ELEMENTS) + 1  # and one of scales
    for counters in took:
        assert counters is not None
        done = counters.done
        assert counters.elements == ELEMENTS
        assert min(done.datagrams_out, done.datagrams_in) >= blocks
        assert min(done.bytes_out, done.bytes_in) >= ELEMENTS
        assert counters.rtt_s > 0
        assert 0 < done.encode_s + done.network_s + done.decode_s <= counters.seconds
        assert counters.as_dict()["bytes_in"] == done.bytes_in


# so says torch 2.11, and it is the only cycle
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle:UserWarning")
def test_the_phases_are_in_a_trace_of_all_threads(alone: TensorAllReduce) -> None:
    everything = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everything) as trace:
        for _ in range(20):  # phases of the loop are shown now and then
            alone(torch.ones(100 * ELEMENTS))
    names = {event.key for event in trace.key_averages()}
    assert {"inagg::encode", "inagg::network", "inagg::decode", "inagg::all_reduce", "inagg::wait"} <= names
