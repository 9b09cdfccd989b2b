"""A device that encodes tensors: codes and sums are those of the CPU's kernels. Here it is the CPU, whose streams
are threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from tests.host.codec.reference import (
    agree,
    decode_all,
    encode_all,
    largest_magnitudes,
    make_job,
    random_result,
    random_values,
)
from tests.host.torch.cpu_platform import CpuPlatform, HostStream

from inagg_host.codec import Job
from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staged import BAD
from inagg_host.codec.staging import Board
from inagg_host.torch.gpu import device
from inagg_host.torch.gpu.device import Operand, TensorDevice, is_aligned
from inagg_host.torch.gpu.floats import DTYPES
from inagg_testbed.kernel_calls import make_table
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import Floats, FloatType

BLOCKS, CHUNK, FIRST_NUMBER = 23, 2, 1000
PATIENCE_S = 20.0
HERE = torch.device("cpu")
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())
every_format = pytest.mark.parametrize("name", ["nat8", "nat4", "tern", "dith8", "fix32"])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tensor(values: Floats, float_type: FloatType) -> torch.Tensor:
    raw = torch.from_numpy(values.view({2: np.int16, 4: np.int32, 8: np.int64}[values.itemsize]).copy())
    return raw.view(DTYPES[float_type])


class Launched:
    """An operation that was launched, of which the network has said nothing yet."""

    def __init__(
        self, stack: ExitStack, name: str, float_type: FloatType, own: range = range(BLOCKS), divisor: int = 1
    ) -> None:
        self.job: Job = make_job(name, float_type, lanes=32)
        self.values = random_values(np.random.default_rng(1), BLOCKS * self.job.lanes - 5, float_type, 0.0)
        self.scales, self.refinements = agree(self.job, self.values)
        self.platform = CpuPlatform(HERE)
        self.device = TensorDevice(self.platform, {float_type: self.job})
        self.board: Board = self.device.board(self.job, BLOCKS, CHUNK)
        stack.callback(self.close)
        given = tensor(self.values, float_type)
        self.out = torch.zeros(min(len(own) * self.job.lanes, given.numel()), dtype=given.dtype)
        self.operand = Operand(given, self.out)
        self.platform.launched.clear()
        self.platform.words.clear()
        self.device.launch(self.operand, self.job, self.board, CHUNK, own, divisor)
        self.end = self.device.decode_stream.record_event()

    def agree(self, chunk: int) -> None:
        """The network has agreed on the scales of a chunk."""
        blocks = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, BLOCKS))
        bytes_ = self.scales[blocks], self.refinements[blocks]
        numbers = np.arange(BLOCKS)[blocks] + FIRST_NUMBER
        self.board.sending[blocks] = make_table(self.job, *bytes_, self.job.for_encode.fraction_bits, numbers)
        self.board.receiving[blocks] = make_table(self.job, *bytes_, self.job.for_decode.fraction_bits)
        store_word(self.board.agreed[chunk:].ctypes.data, 1)

    def close(self) -> None:
        """Nothing is waited for any more."""
        for words in (self.board.agreed, self.board.complete):
            words[:] = 1
        self.device.close()


def awaited(words: np.ndarray[tuple[int, ...], np.dtype[np.int64]], least: int = 1) -> None:
    """Wait for the first of them."""
    give_up_s = time.monotonic() + PATIENCE_S
    while load_word(words.ctypes.data) < least:
        assert time.monotonic() < give_up_s
        time.sleep(1e-4)


@every_type
def test_largest_magnitudes_are_those_of_the_cpu(float_type: FloatType, stack: ExitStack) -> None:
    one = Launched(stack, "nat8", float_type)
    awaited(one.board.measured, BLOCKS)
    of_one, padded = make_job("nat8", float_type, lanes=8), np.zeros((BLOCKS, 8), one.job.dtype)
    padded[:, 0] = one.board.magnitudes.view(one.job.dtype)
    assert largest_magnitudes(of_one, padded.reshape(-1)) == largest_magnitudes(one.job, one.values)


@every_type
@every_format
def test_codes_are_those_of_the_cpu(name: str, float_type: FloatType, stack: ExitStack) -> None:
    one = Launched(stack, name, float_type)
    _, expected = encode_all(one.job, one.values, one.scales, one.refinements, first_number=FIRST_NUMBER)
    for chunk in range(one.board.coded.size):
        one.agree(chunk)
    awaited(one.board.coded[-1:])
    assert not one.board.flags.any()
    assert one.board.codes.tobytes() == expected[:, HEADER_BYTES:].tobytes()


def test_a_chunk_is_encoded_when_its_scales_are_agreed_on_and_not_before(stack: ExitStack) -> None:
    one = Launched(stack, "nat8", FloatType.FLOAT32)
    one.agree(0)
    awaited(one.board.coded)
    time.sleep(0.02)
    assert one.board.coded.tolist() == [1] + [0] * (one.board.coded.size - 1)


def test_values_beyond_their_scale_are_flagged(stack: ExitStack) -> None:
    one = Launched(stack, "nat8", FloatType.FLOAT32)
    awaited(one.board.measured, BLOCKS)
    one.operand.values[4 * one.job.lanes] = 1e6
    for chunk in range(one.board.coded.size):
        one.agree(chunk)
    awaited(one.board.coded[-1:])
    assert one.board.flags.max(axis=1).tolist() == [BAD if block == 4 else 0 for block in range(BLOCKS)]


@every_type
@every_format
@pytest.mark.parametrize("divisor", [1, 3])
@pytest.mark.parametrize("own", [range(BLOCKS), range(3, 20)], ids=["all", "piece"])
def test_sums_are_those_of_the_cpu(
    name: str, float_type: FloatType, divisor: int, own: range, stack: ExitStack
) -> None:
    one = Launched(stack, name, float_type, own, divisor)
    payloads = np.stack([random_result(np.random.default_rng(2), one.job) for _ in range(BLOCKS)])
    mine = slice(own.start, own.stop)
    invalid, expected = decode_all(
        one.job, payloads[mine], one.out.numel(), one.scales[mine], one.refinements[mine], divisor
    )
    one.board.results[:] = payloads.reshape(-1)
    first = own.start // CHUNK  # those before it are not waited for
    for chunk in reversed(range(one.board.coded.size)):
        assert chunk < first or one.out.view(torch.uint8).numpy().tobytes() != expected.tobytes()
        one.agree(chunk)
        store_word(one.board.complete[chunk:].ctypes.data, 1)
    one.end.synchronize()
    assert one.out.view(torch.uint8).numpy().tobytes() == expected.tobytes()
    assert int(one.board.invalid[mine].sum()) == invalid


def test_kernels_are_told_of_their_blocks_and_of_no_value_beyond_them(stack: ExitStack) -> None:
    one = Launched(stack, "nat8", FloatType.FLOAT32, range(3, 20))
    lanes, launched = one.job.lanes, one.platform.launched
    encoders = [(count, a["first"], a["elements"]) for count, a in launched if "first" in a]
    assert encoders == [
        (min(CHUNK, BLOCKS - first), first, min((first + CHUNK) * lanes, one.values.size) - first * lanes)
        for first in range(0, BLOCKS, CHUNK)
    ]
    decoders = [(count, a["elements"]) for count, a in launched if "divisor" in a]
    assert decoders == [(5, 5 * lanes), (8, 8 * lanes), (4, 4 * lanes)]
    assert {a["ties"] for _, a in launched if "ties" in a} == {one.board.ties.ctypes.data}
    assert {a["counted"] for _, a in launched if "ties" in a} == {one.device._ties.data_ptr()}


def test_each_kernel_waits_for_the_words_of_its_chunks(stack: ExitStack) -> None:
    own = range(8, 17)  # the second launch of four chunks, and a block of the third
    one = Launched(stack, "nat8", FloatType.FLOAT32, own)
    at, chunks = one.board.addresses, one.board.coded.size
    of_chunks = [
        (what, at[name] + 8 * i, 1) for i in range(chunks) for what, name in (("wait", "agreed"), ("write", "coded"))
    ]
    complete = [("wait", at["complete"] + 8 * i, 1) for i in range(4, 9)]
    assert one.platform.words == [("write", at["measured"], BLOCKS), *of_chunks, *complete]


def test_largest_magnitudes_of_many_blocks_are_found_in_some_launches(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "LOOK_ELEMENTS", 20 * 32)
    one = Launched(stack, "nat8", FloatType.FLOAT32)
    awaited(one.board.measured, BLOCKS)
    found = [(count, a["elements"]) for count, a in one.platform.launched if "bits" in a]
    assert found[-2:] == [(16, 16 * 32), (BLOCKS - 16, (BLOCKS - 16) * 32 - 5)]
    of_one, padded = make_job("nat8", FloatType.FLOAT32, lanes=8), np.zeros((BLOCKS, 8), np.float32)
    padded[:, 0] = one.board.magnitudes.view(np.float32)
    assert largest_magnitudes(of_one, padded.reshape(-1)) == largest_magnitudes(one.job, one.values)


def test_what_a_stream_cannot_do_is_raised_by_its_events_and_nothing_comes_after_it() -> None:
    stream, done = HostStream(), []

    def fail() -> None:
        raise ValueError("no such kernel")

    stream.do(fail)
    stream.do(lambda: done.append(1))
    with pytest.raises(ValueError, match="no such kernel"):
        stream.record_event().synchronize()
    assert done == []
    stream.close()


def test_a_view_may_not_be_aligned() -> None:
    whole = torch.zeros(64)
    assert is_aligned(whole)
    assert not is_aligned(whole[1:])
