"""Job formats: what admission accepts cannot overflow, and every level that can come about has a code."""

from __future__ import annotations

import numpy as np
import pytest
from tests.wire.exact import ALL_FORMATS, NATURAL, WORKER_COUNTS, named, spelled, unit_value

from inagg_wire import codec, payload, reencode, scale
from inagg_wire.errors import AdmissionError
from inagg_wire.formats import (
    ACCUMULATOR_MAX,
    FORMATS,
    WORKERS_MAX,
    Family,
    JobFormat,
    admit,
    ceil_log2,
    job_format,
)
from inagg_wire.layout import (
    CARRIED,
    HEADER_BYTES,
    LANE_BITS,
    LANE_COUNT_MAX,
    LANE_MULTIPLE,
    UDP_PAYLOAD_BYTES_1500,
    Encoding,
    Kind,
    Op,
    datagram_bytes,
)
from inagg_wire.scale import FloatType

by_format = pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)

ALL_ONES = 0xFFFFFFFF
INT32_MAX = 2**31 - 1


def codes_worth_trying(encoding: Encoding) -> payload.Codes:
    """All codes of an encoding of up to 16 bits; of 32 bits, those around every power of two and the ends."""
    bits = LANE_BITS[encoding]
    if bits <= 16:
        return np.arange(1 << bits, dtype=np.uint32)
    near = np.arange(-3, 4) + (1 << np.arange(bits, dtype=np.int64))[:, None]
    return np.unique(near & ((1 << bits) - 1)).astype(np.uint32)


@pytest.mark.parametrize(("n", "c"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (31, 5), (32, 5)])
def test_ceil_log2(n: int, c: int) -> None:
    assert ceil_log2(n) == c


# --- no overflow ----------------------------------------------------------------------------------------


@by_format
def test_top_levels_of_all_workers_fit_an_accumulator(fmt: JobFormat) -> None:
    assert ACCUMULATOR_MAX == INT32_MAX
    assert all(n * fmt.top(n) <= INT32_MAX for n in WORKER_COUNTS)


@by_format
def test_no_code_at_all_adds_more_than_the_top_level(fmt: JobFormat) -> None:
    for n in WORKER_COUNTS:
        integers, _ = reencode.contribution_integers(Op.SUM, fmt, n, codes_worth_trying(fmt.up))
        assert np.abs(integers).max() == fmt.top(n)


@by_format
def test_codes_that_name_no_level_are_counted_and_add_nothing(fmt: JobFormat) -> None:
    for n in WORKER_COUNTS:
        codes = codes_worth_trying(fmt.up)
        bits = LANE_BITS[fmt.up]
        if fmt.family is Family.NATURAL:
            beyond = (codes & ((1 << (bits - 1)) - 1)) > fmt.levels(n)
        else:
            signed = codes.astype(np.int64)
            signed[signed >= 1 << (bits - 1)] -= 1 << bits
            beyond = np.abs(signed) > fmt.top(n)
        integers, invalid = reencode.contribution_integers(Op.SUM, fmt, n, codes)
        assert invalid == beyond.sum()
        assert not integers[beyond].any()


@by_format
def test_contributions_of_the_largest_values_never_leave_32_bits(fmt: JobFormat) -> None:
    """The real encoder, sum and re-encoder for every n, all workers at the top level, of every mixture of signs that
    makes a different sum, with the noise that adds most."""
    for n in WORKER_COUNTS:
        unit = scale.unit(fmt, n, scale.SCALE_BYTE_MAX, 255)
        assert unit is not None
        top = float(unit_value(unit) * fmt.top(n))
        ones = np.full(n + 1, ALL_ONES, np.uint32)
        accumulators = np.zeros(n + 1, np.int64)
        for worker in range(n):  # in lane i, the first i workers are negative
            values = np.where(worker < np.arange(n + 1), -top, top)
            codes = codec.encode(values, FloatType.FLOAT64, fmt, n, unit, spelled(ones))
            integers, invalid = reencode.contribution_integers(Op.SUM, fmt, n, codes)
            assert invalid == 0
            assert (np.abs(integers) == fmt.top(n)).all()
            accumulators = reencode.combine(Op.SUM, accumulators, integers)
            assert np.abs(accumulators).max() <= INT32_MAX
        assert accumulators.max() == n * fmt.top(n) == -accumulators.min()
        check_result(fmt, n, accumulators)


@by_format
def test_every_result_has_a_level_that_decodes(fmt: JobFormat) -> None:
    """All sums where there are few, else those around every power of two, for every n."""
    for n in WORKER_COUNTS:
        most = n * fmt.top(n) << fmt.roundings
        if most <= 1 << 13:
            sums = np.arange(-most, most + 1)
        else:
            around = (np.arange(-2, 3) + (1 << np.arange(31))[:, None]).ravel()
            around = around[around <= most]
            sums = np.concatenate([around, -around, [0, most, -most, most - 1, 1 - most]])
        check_result(fmt, n, sums)


def check_result(fmt: JobFormat, n: int, sums: reencode.Integers) -> None:
    for noise in (0, ALL_ONES, 0x55555555, 0xAAAAAAAA):
        codes = reencode.result_codes(Op.SUM, fmt, n, sums, np.full(sums.size, noise, np.uint32))
        assert codes.max() < 1 << LANE_BITS[fmt.down(n)]
        integers, invalid = reencode.integers(fmt.down(n), codes, fmt.result_levels(n))
        assert invalid == 0
        assert (np.sign(integers) * np.sign(sums) >= 0).all()
        if not fmt.reduced:
            assert (integers == sums).all()


@pytest.mark.parametrize("fmt", NATURAL, ids=named)
def test_highest_result_level_can_be_reached(fmt: JobFormat) -> None:
    for n in WORKER_COUNTS:
        code = reencode.result_codes(
            Op.SUM, fmt, n, np.array([n * fmt.top(n) << fmt.roundings]), np.array([ALL_ONES], np.uint32)
        )
        assert code.tolist() == [fmt.result_levels(n)]


def test_re_encoding_fits_32_bit_arithmetic() -> None:
    """Adding the noise below the leading one never carries beyond 31 bits, whatever an accepted job sums to.

    The worst noise is all ones; of the sums with one leading position, the largest is worst.
    """
    most = max(n * f.top(n) for f in ALL_FORMATS for n in WORKER_COUNTS if f.reduced)
    assert most == 1 << 30
    worst = [min((2 << k) - 1, most) + (1 << k) - 1 for k in range(31)]
    assert max(worst) == INT32_MAX
    for n in WORKER_COUNTS:  # the shifted windows: the lowest position is c instead of 0
        c = ceil_log2(n)
        assert 64 * n + (1 << max((64 * n).bit_length() - 1, c)) - 1 <= INT32_MAX
        assert (127 * n + (1 << c) - 1) >> c <= 127


# --- what a job sends and gets --------------------------------------------------------------------------


@by_format
def test_job_uses_encodings_that_its_datagrams_may_carry(fmt: JobFormat) -> None:
    for n in WORKER_COUNTS:
        for op in Op:
            assert fmt.encoding(op) in CARRIED[Kind.CONTRIBUTION, op]
            assert fmt.result_encoding(op, n) in CARRIED[Kind.RESULT, op]
            assert fmt.encoding(op) in CARRIED[Kind.NOTICE, op]


def test_tern_results_take_four_bits_up_to_seven_workers() -> None:
    tern = job_format("tern")
    assert [tern.down(n) for n in (1, 7, 8, 32)] == [Encoding.INT4, Encoding.INT4, Encoding.INT8, Encoding.INT8]


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [("nat8", 8, 8), ("nat4", 4, 4), ("nat4-nat8", 4, 8), ("tern", 2, 4), ("dith8", 8, 8), ("dith8-exact", 8, 16)],
)
def test_bits_per_lane(name: str, up: int, down: int) -> None:
    fmt = job_format(name)
    assert (LANE_BITS[fmt.up], LANE_BITS[fmt.down(2)]) == (up, down)


def test_nat8_levels_are_31_less_the_bits_of_the_workers() -> None:
    assert [job_format("nat8").levels(n) for n in (1, 2, 3, 4, 5, 8, 16, 17, 32)] == [
        31,
        30,
        29,
        29,
        28,
        28,
        27,
        26,
        26,
    ]


# --- admission ------------------------------------------------------------------------------------------


@by_format
def test_most_lanes_fit_a_frame_and_eight_more_do_not(fmt: JobFormat) -> None:
    for n in WORKER_COUNTS:
        for limit in (200, 512, UDP_PAYLOAD_BYTES_1500, 8972, 65507):
            most = fmt.max_lanes(n, limit)
            sizes = [max(datagram_bytes(e, m) for e in (fmt.up, fmt.down(n))) for m in (most, most + LANE_MULTIPLE)]
            assert most % LANE_MULTIPLE == 0
            assert sizes[0] <= limit
            assert sizes[1] > limit or most == LANE_COUNT_MAX


@by_format
def test_every_accepted_job_has_scale_blocks_that_fit_its_slots_and_datagrams(fmt: JobFormat) -> None:
    for lanes in range(fmt.min_lanes, fmt.max_lanes(8) + 1, LANE_MULTIPLE):
        admit(fmt, 8, lanes)
        scale_lanes = fmt.lanes_for(Op.MAX, lanes)
        assert 0 < scale_lanes <= fmt.lanes_for(Op.SUM, lanes) == lanes
        assert scale_lanes % LANE_MULTIPLE == 0
        assert datagram_bytes(Encoding.SCALE8, scale_lanes) <= datagram_bytes(fmt.up, lanes)


@by_format
@pytest.mark.parametrize("limit", [UDP_PAYLOAD_BYTES_1500, 8972, 65507])
def test_scale_blocks_of_large_datagrams_still_fit_a_frame_of_1500_bytes(fmt: JobFormat, limit: int) -> None:
    scale_lanes = fmt.scale_lanes(fmt.max_lanes(8, limit))
    assert datagram_bytes(Encoding.SCALE8, scale_lanes) <= UDP_PAYLOAD_BYTES_1500
    assert scale_lanes >= fmt.scale_lanes(fmt.max_lanes(8))


@by_format
def test_job_without_lanes_for_its_scales_is_refused(fmt: JobFormat) -> None:
    fewer = fmt.min_lanes - LANE_MULTIPLE
    assert fmt.scale_lanes(fewer) == 0
    with pytest.raises(AdmissionError, match=f"multiple of 8 from {fmt.min_lanes} to"):
        admit(fmt, 2, fewer)


@pytest.mark.parametrize("workers", [-1, 0, WORKERS_MAX + 1])
def test_worker_counts_that_no_bitmap_holds_are_refused(workers: int) -> None:
    with pytest.raises(AdmissionError, match="1 to 32"):
        admit(job_format("nat8"), workers, 8)


@pytest.mark.parametrize("lanes", [-8, 0, 1, 12, 1449, 1456])
def test_lane_counts_that_do_not_fit_are_refused_with_what_would(lanes: int) -> None:
    with pytest.raises(AdmissionError, match="multiple of 8 from 8 to 1448"):
        admit(job_format("nat8"), 2, lanes)


@by_format
def test_limit_too_small_for_any_job_is_refused_with_the_smallest_that_fits(fmt: JobFormat) -> None:
    with pytest.raises(AdmissionError) as raised:
        admit(fmt, 2, fmt.min_lanes, HEADER_BYTES)
    smallest = int(str(raised.value).split()[-1])
    admit(fmt, 2, fmt.min_lanes, smallest)
    with pytest.raises(AdmissionError):
        admit(fmt, 2, fmt.min_lanes, smallest - 1)


def test_unknown_format_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(AdmissionError, match=", ".join(FORMATS)):
        job_format("nat16")


def test_formats_are_known_by_their_own_names() -> None:
    assert {name: fmt.name for name, fmt in FORMATS.items()} == {name: name for name in FORMATS}
