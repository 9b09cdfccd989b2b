"""What the kernels must give, by the reference codec, one block at a time; and noise made to order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host.codec import ALL_GOOD, Job
from inagg_host.codec.decoder import decode_payload
from inagg_testbed.kernel_calls import Call
from inagg_wire import codec, noise, noise_keys, payload, scale
from inagg_wire.formats import job_format
from inagg_wire.layout import HEADER_BYTES, Encoding
from inagg_wire.scale import Floats, FloatType

Bytes = npt.NDArray[np.uint8]

CONTRIBUTIONS = ("nat8", "nat4", "tern", "dith8", "fix32")
"""Formats that differ on the way up."""
WORKERS = (1, 2, 3, 7, 8, 32)
SEED = 0xC0FFEE
UNTOUCHED = 0xEE


def make_job(
    name: str, float_type: FloatType, workers: int = 3, lanes: int = 40, seed: int = SEED, rank: int | None = None
) -> Job:
    return Job(job_format(name), workers, workers - 1 if rank is None else rank, lanes, seed, float_type)


# --- values ---


def narrowed(exact: npt.NDArray[np.float64], float_type: FloatType) -> Floats:
    """To the type, towards zero for bfloat16; what does not fit becomes infinite."""
    with np.errstate(over="ignore", under="ignore"):
        if float_type is FloatType.BFLOAT16:
            return (exact.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return exact.astype(float_type.dtype)


def random_values(rng: np.random.Generator, count: int, float_type: FloatType, log2_largest: float) -> Floats:
    """Of both signs, most within some octaves of 2**log2_largest and some far below; finite."""
    octaves = np.where(rng.random(count) < 0.8, rng.uniform(0, 12, count), rng.uniform(0, 80, count))
    with np.errstate(under="ignore"):
        exact = np.exp2(log2_largest - octaves) * rng.choice([-1.0, 1.0], count)
    return narrowed(exact, float_type)


def random_bits(rng: np.random.Generator, count: int, float_type: FloatType) -> Floats:
    """Any bit patterns, NaN and infinity too."""
    return rng.integers(0, 256, count * float_type.dtype.itemsize, np.uint8).view(float_type.dtype)


# --- scales ---


def agree(job: Job, values: Floats) -> tuple[Bytes, Bytes]:
    """The bytes of all blocks, as if all other workers had zeros."""
    own = [scale.scale_byte(job.format, job.workers, b, job.float_type) for b in blocks_of(job, values)]
    refined = [
        scale.refine_byte(job.format, b, job.float_type, s, s) if job.refined else 0
        for b, s in zip(blocks_of(job, values), own, strict=True)
    ]
    return np.array(own, np.uint8), np.array(refined, np.uint8)


def largest_magnitudes(job: Job, values: Floats) -> list[int]:
    """The largest magnitude of each block, as the bits of a float64."""
    return [int(magnitude) for magnitude in Call(job, values).scale(0, job.blocks(values.size))[0]]


def blocks_of(job: Job, values: Floats) -> list[Floats]:
    return [values[start : start + job.lanes] for start in range(0, values.size, job.lanes)]


# --- contributions ---


def expected_payload(job: Job, block: Floats, number: int, scale_byte: int, refinement: int) -> bytes:
    u = scale.unit(job.format, job.workers, scale_byte, refinement)
    codes = np.zeros(job.lanes, np.uint32)
    if u is not None:
        key = noise_keys.block_key(job.seed, job.rank, number)
        codes[: block.size] = codec.encode(
            block, job.float_type, job.format, job.workers, u, lambda i: noise.host_words(key, block.size, i)
        )
    return payload.pack(job.format.up, codes)


def encode_all(job: Job, values: Floats, scales: Bytes, refinements: Bytes, first_number: int = 0) -> tuple[int, Bytes]:
    """All blocks, in order, in a buffer of their own; the result of the call and the datagrams."""
    count = job.blocks(values.size)
    datagrams = np.full((count, job.datagram_bytes), UNTOUCHED, np.uint8)
    return Call(job, values, scales, refinements, ring=datagrams).encode(0, first_number, count, 0), datagrams


def assert_encodes_as_reference(
    job: Job, values: Floats, scales: Bytes, refinements: Bytes, first_number: int = 0
) -> None:
    bad, datagrams = encode_all(job, values, scales, refinements, first_number)
    assert bad == ALL_GOOD
    assert (datagrams[:, :HEADER_BYTES] == UNTOUCHED).all()
    for i, block in enumerate(blocks_of(job, values)):
        want = expected_payload(job, block, first_number + i, int(scales[i]), int(refinements[i]))
        assert datagrams[i, HEADER_BYTES:].tobytes() == want, f"block {i}"


# --- results ---


def decode_all(
    job: Job, payloads: Bytes, elements: int, scales: Bytes, refinements: Bytes, divisor: int = 1
) -> tuple[int, Floats]:
    """``payloads``: one row a block. The result of the call and the values."""
    datagrams = np.full((len(payloads), job.result_bytes), UNTOUCHED, np.uint8)
    datagrams[:, HEADER_BYTES:] = payloads
    values = np.full(elements * job.float_type.dtype.itemsize, UNTOUCHED, np.uint8).view(job.float_type.dtype)
    blocks = np.arange(job.blocks(elements))
    call = Call(job, values, scales, refinements, data=datagrams, places=blocks, numbers=blocks, divisor=divisor)
    return call.decode(0, blocks.size), values


def decode_own(job: Job, payloads: Bytes, elements: int, scales: Bytes, refinements: Bytes) -> Floats:
    """What contributions stand for; ``payloads``: one row a block."""
    values, room = np.zeros(elements, job.dtype), Call(job, np.zeros(0, job.dtype)).room.arrays
    for row, block, scale_byte, refinement in zip(payloads, blocks_of(job, values), scales, refinements, strict=True):
        scalars = int(scale_byte), int(refinement), 1
        decode_payload(job.for_encode, bits(block), row, *scalars, room["words"], room["codes"], False)
    return values


def expected_values(job: Job, row: Bytes, count: int, scale_byte: int, refinement: int) -> Floats:
    codes = payload.unpack(job.format.down(job.workers), row.tobytes())[:count]
    u = scale.unit(job.format, job.workers, scale_byte, refinement)
    return codec.decode(codes, job.float_type, job.format, job.workers, u)


def bits(values: Floats) -> npt.NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")


def random_result(rng: np.random.Generator, job: Job) -> Bytes:
    """A result's payload: codes of all levels and some that name none."""
    encoding, top = job.format.down(job.workers), job.format.result_levels(job.workers)
    if encoding is Encoding.NAT8:
        codes = rng.integers(0, top + 2, job.lanes) | rng.integers(0, 2, job.lanes) << 7
    elif encoding is Encoding.NAT4:
        codes = rng.integers(0, 16, job.lanes)
    else:
        magnitude = np.exp2(rng.uniform(0, np.log2(top * 1.01), job.lanes)).astype(np.int64)
        codes = magnitude * rng.choice([-1, 0, 1], job.lanes)
        codes[:2] = top, -top
        codes &= {Encoding.INT4: 15, Encoding.INT8: 255, Encoding.DITH8: 255, Encoding.INT16: 0xFFFF}.get(
            encoding, 0xFFFFFFFF
        )
    return np.frombuffer(payload.pack(encoding, codes.astype(np.uint32)), np.uint8)


# --- noise made to order: the hashes are bijections, and are undone here ---


def _unmix64(z: int) -> int:
    mask = (1 << 64) - 1
    z = _unshift(z, 31, 64)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    z = _unshift(z, 27, 64)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    return _unshift(z, 30, 64)


def _unshift(z: int, by: int, width: int) -> int:
    """The x with x ^ (x >> by) == z."""
    x = z
    for _ in range(width // by):
        x = z ^ (x >> by)
    return x


def number_with_key(seed: int, worker: int, k0: int, k1: int) -> int:
    """The block number, as an int64, that has this noise key."""
    # block_key is mix64(mix64(seed, worker) ^ block); block 0 gives the first half.
    first = noise_keys.block_key(seed, worker, 0)
    seed_part = _unmix64(first.k1 << 32 | first.k0)
    number = _unmix64(k1 << 32 | k0) ^ seed_part
    return number - (1 << 64) if number >> 63 else number


def k0_with_word(word: int, lane: int, k1: int) -> int:
    """The k0 with which word 0 of ``lane`` is ``word``."""
    mask = (1 << 32) - 1
    by = lane // 8 % 4 * 8
    x = _unshift((word >> by | word << 32 - by) & mask, 16, 32)
    x = x * pow(noise.MULTIPLIER_2, -1, 1 << 32) & mask
    x = _unshift(x - k1 & mask, 15, 32)
    x = x * pow(noise.MULTIPLIER_1, -1, 1 << 32) & mask
    return _unshift(x, 16, 32) - (lane // 32 * 8 + lane % 8) & mask
