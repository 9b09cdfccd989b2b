"""contributions.json, results.json, reencode.json and partials.json: whole datagrams, and the switch's arithmetic."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from inagg_wire.codec import decode, encode
from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.header import Datagram, Header
from inagg_wire.layout import LANE_MULTIPLE, Encoding, Kind, Op
from inagg_wire.noise import host_words, partial_words, switch_words
from inagg_wire.noise_keys import block_key
from inagg_wire.payload import Codes, pack
from inagg_wire.reencode import combine, contribution_integers, partial_codes, result_codes
from inagg_wire.scale import Floats, FloatType, Unit
from inagg_wire.slots import Lease

from .common import Vector, agree, cast, random_values, to_hex, unit_json

CONTRIBUTIONS_MEANING = (
    "Whole contributions: what a worker knows, to the UDP payload that it sends. `block` gives slot and "
    "generation in the lease, and with `seed` and `worker` the noise. Blocks are 64 bits, in hex."
)
RESULTS_MEANING = (
    "Whole blocks: `contributions`, one datagram of each worker in rank order, to the `sums` (or maxima) of their"
    " integers and the `result` datagram. SUM blocks also have each worker's `values` (float32), the `unit` that "
    "they agreed on, and what the result decodes to (`decoded`, per float type). `invalid_codes` lanes named no "
    "level and counted as zero."
)
REENCODE_MEANING = (
    "Sums of integers to the codes of a result, with the switch's noise of that seed, slot and generation. The "
    "first sums are the largest that the format can have."
)
PARTIALS_MEANING = (
    "Sums of integers to the codes that a switch of a tree sends to its parent, of formats whose partial sums are "
    "rounded. `key` is that of the seed, the smallest rank below the switch, and its levels of switches."
)

JOB, TOKEN, SEED = 7, 0xC0FFEE01, 0x5EED0001
LEASE = Lease(0x40, 16)
F16, BF16, F32, F64 = FloatType.FLOAT16, FloatType.BFLOAT16, FloatType.FLOAT32, FloatType.FLOAT64


def lanes_of(fmt: JobFormat) -> int:
    """As few lanes as leave 8 lanes for MAX blocks."""
    return {Encoding.TERN: 32, Encoding.NAT4: 16}.get(fmt.up, 8)


def _contribution(fmt: JobFormat, op: Op, block: int, codes: Codes) -> bytes:
    encoding = fmt.encoding(op)
    slot, generation = LEASE.slot(block), LEASE.generation(block)
    header = Header(Kind.CONTRIBUTION, op, encoding, codes.size, JOB, TOKEN, slot, generation)
    return Datagram(header, pack(encoding, codes)).pack()


def _encode(values: Floats, float_type: FloatType, fmt: JobFormat, n: int, u: Unit, worker: int, block: int) -> Codes:
    key = block_key(SEED, worker, block)
    return encode(values, float_type, fmt, n, u, lambda i: host_words(key, values.size, i))


def _sum_contribution(
    what: str, fmt: JobFormat, n: int, float_type: FloatType, worker: int, block: int, values: Floats, u: Unit
) -> Vector:
    datagram = _contribution(fmt, Op.SUM, block, _encode(values, float_type, fmt, n, u, worker, block))
    return {
        "what": what,
        "format": fmt.name,
        "workers": n,
        "op": int(Op.SUM),
        "float_type": float_type.name.lower(),
        "lease": {"base": LEASE.base, "slots": LEASE.slots},
        "job": JOB,
        "token": TOKEN,
        "seed": SEED,
        "worker": worker,
        "block": f"{block:016x}",
        "slot": LEASE.slot(block),
        "generation": LEASE.generation(block),
        "unit": unit_json(u),
        "values": to_hex(values),
        "datagram": datagram.hex(),
    }


def _contributions() -> Iterator[Vector]:
    rng = random.Random(1911)
    values = cast([1.0, -0.75, 0.0, 0.001, -1e-12, 3.25, -4.0, 2.5], F32)
    nat8, u = FORMATS["nat8"], Unit(1, -27)
    yield _sum_contribution("the worked example of protos/README.md", nat8, 2, F32, 1, 37, values, u)
    for fmt in FORMATS.values():
        for n, float_type in ((1, F32), (3, F32), (32, F32), (7, F64), (2, F16), (8, BF16)):
            values = random_values(rng, lanes_of(fmt), float_type, rng.randrange(-6, 3))
            *_, agreed = agree(fmt, float_type, [values] * n)
            assert agreed is not None
            worker, block = rng.randrange(n), rng.choice((rng.randrange(16), rng.getrandbits(20), rng.getrandbits(30)))
            what = f"{fmt.name}, {n} workers, {float_type.name.lower()}"
            yield _sum_contribution(what, fmt, n, float_type, worker, block, values, agreed)
    largest = 16 * ((1 << 31) - 1) - 1
    values = random_values(rng, 64, F32)
    yield _sum_contribution("64 lanes, the last block of an epoch", nat8, 4, F32, 3, largest, values, u)
    yield _sum_contribution("the block after: generation 1 again", nat8, 4, F32, 3, largest + 1, values, u)


def make_contributions() -> Vector:
    """The content of contributions.json."""
    return {"meaning": CONTRIBUTIONS_MEANING, "vectors": list(_contributions())}


def _result(what: str, fmt: JobFormat, op: Op, block: int, contributed: list[Codes]) -> Vector:
    """The switch's part of a block: from codes of all workers to the result."""
    n = len(contributed)
    parts = [contribution_integers(op, fmt, n, codes) for codes in contributed]
    sums = parts[0][0]
    for part, _ in parts[1:]:
        sums = combine(op, sums, part)
    slot, generation, lanes = LEASE.slot(block), LEASE.generation(block), sums.size
    codes = result_codes(op, fmt, n, sums, switch_words(SEED, slot, generation, lanes))
    encoding = fmt.result_encoding(op, n)
    header = Header(Kind.RESULT, op, encoding, lanes, JOB, TOKEN, slot, generation)
    return {
        "what": what,
        "format": fmt.name,
        "workers": n,
        "op": int(op),
        "job": JOB,
        "token": TOKEN,
        "seed": SEED,
        "slot": slot,
        "generation": generation,
        "contributions": [_contribution(fmt, op, block, c).hex() for c in contributed],
        "sums": sums.tolist(),
        "invalid_codes": sum(invalid for _, invalid in parts),
        "codes": codes.tolist(),
        "result": Datagram(header, pack(encoding, codes)).pack().hex(),
    }


def _sum_round(fmt: JobFormat, n: int, rng: random.Random, blocks: list[Floats], what: str) -> Vector:
    *_, u = agree(fmt, F32, blocks)
    assert u is not None
    block = rng.getrandbits(16)
    contributed = [_encode(values, F32, fmt, n, u, worker, block) for worker, values in enumerate(blocks)]
    vector = _result(what, fmt, Op.SUM, block, contributed)
    codes = np.array(vector["codes"], np.uint32)
    return vector | {
        "block": f"{block:016x}",
        "unit": unit_json(u),
        "values": [to_hex(values) for values in blocks],
        "decoded": {t.name.lower(): to_hex(decode(codes, t, fmt, n, u)) for t in FloatType},
    }


def _results() -> Iterator[Vector]:
    rng = random.Random(2012)
    for fmt in FORMATS.values():
        lanes = lanes_of(fmt)
        for n in (1, 2, 3, 7, 8, 32):
            blocks = [random_values(rng, lanes, F32) for _ in range(n)]
            yield _sum_round(fmt, n, rng, blocks, f"{fmt.name}, {n} workers")
        tops = [cast([1.0] * (lanes // 2) + [-1.0] * (lanes // 2), F32)] * 32
        yield _sum_round(fmt, 32, rng, tops, f"{fmt.name}, 32 workers, all at the top: no overflow")
        scales = [np.array([rng.randrange(1, 250) for _ in range(8)], np.uint32) for _ in range(3)]
        scales[0][0], scales[1][1], scales[2][2] = 0, 255, 252
        yield _result(f"{fmt.name}: MAX of scale bytes", fmt, Op.MAX, rng.getrandbits(16), scales)
    yield from _invalid_codes()


def _invalid_codes() -> Iterator[Vector]:
    """Codes that name no level, beside good ones."""
    for name, codes in (
        ("nat8", [30, 31, 0x80, 0xFF, 0x9E, 0x9F, 1, 0]),
        ("tern", [0, 1, 2, 3] * 8),
        ("dith8", [0x7F, 0x80, 0x81, 0, 1, 0xFF, 0x80, 0x80]),
        ("fix32", [1 << 29, (1 << 29) + 1, 0xE0000000, 0xDFFFFFFF, 0x80000000, 0x7FFFFFFF, 0, 0xFFFFFFFF]),
    ):
        contributed = [np.array(codes, np.uint32), np.array([1] * len(codes), np.uint32)]
        yield _result(f"{name}: codes that name no level count as zero", FORMATS[name], Op.SUM, 5, contributed)


def make_results() -> Vector:
    """The content of results.json."""
    return {"meaning": RESULTS_MEANING, "vectors": list(_results())}


def _sums(fmt: JobFormat, n: int, rng: random.Random) -> list[int]:
    most = n * fmt.top(n) << fmt.roundings
    powers = [1 << rng.randrange(most.bit_length()) for _ in range(2)]
    near = [p + d for p in powers for d in (-1, 1) if p + d <= most]
    sums = [most, -most, 0, 1, -1, min(3, most), *powers, *(-x for x in near)]
    while len(sums) < 32:
        magnitude = rng.getrandbits(rng.randrange(1, most.bit_length() + 1))
        sums.append(rng.choice((-1, 1)) * min(magnitude, most))
    return sums


def _reencodings() -> Iterator[Vector]:
    rng = random.Random(1984)
    for fmt in FORMATS.values():
        if not fmt.reduced:
            continue
        for n in (1, 2, 3, 7, 8, 32):
            sums = _sums(fmt, n, rng)
            seed, slot, generation = rng.getrandbits(32), rng.getrandbits(24), rng.randrange(1, 1 << 31)
            noise = switch_words(seed, slot, generation, len(sums))
            codes = result_codes(Op.SUM, fmt, n, np.array(sums, np.int64), noise)
            numbers = {"workers": n, "seed": seed, "slot": slot, "generation": generation}
            down = {"encoding": int(fmt.down(n))}
            what = f"{fmt.name}, {n} workers"
            yield {"what": what, "format": fmt.name, **numbers, **down, "sums": sums, "codes": codes.tolist()}


def _partials() -> Iterator[Vector]:
    rng = random.Random(1905)
    for fmt in FORMATS.values():
        if not fmt.roundings:
            continue
        for n, levels in dict.fromkeys([(1, 1), (4, 1), (7, 1), (32, 1), (128, 1), (128, fmt.roundings)]):
            first = n * fmt.top(n)  # from workers; above, sums that were rounded are up to twice as large
            sums = [v for v in _sums(fmt, n, rng) if abs(v) <= first << (levels - 1)]
            sums = sums[: len(sums) // LANE_MULTIPLE * LANE_MULTIPLE]
            seed, slot, generation = rng.getrandbits(32), rng.getrandbits(24), rng.randrange(1, 1 << 31)
            first_rank = rng.randrange(n)
            key = block_key(seed, first_rank, levels)
            noise = partial_words(key, seed, slot, generation, len(sums))
            numbers = {"workers": n, "seed": seed, "slot": slot, "generation": generation}
            place = {"first_rank": first_rank, "levels": levels, "key": [f"{k:08x}" for k in key]}
            codes = partial_codes(Op.SUM, fmt, n, np.array(sums, np.int64), noise)
            what = f"{fmt.name}, {n} workers, level {levels}"
            yield {"what": what, "format": fmt.name, **numbers, **place, "sums": sums, "codes": codes.tolist()}


def make_partials() -> Vector:
    """The content of partials.json."""
    return {"meaning": PARTIALS_MEANING, "vectors": list(_partials())}


def make_reencode() -> Vector:
    """The content of reencode.json."""
    return {"meaning": REENCODE_MEANING, "vectors": list(_reencodings())}
