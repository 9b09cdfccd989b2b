"""Drafts of nat8: finished, they are the codes that the reference gives, or they are not used."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.host.codec.reference import SEED, agree, blocks_of, decode_own, expected_payload, make_job, random_values

from inagg_host.codec import ALL_GOOD, Job
from inagg_host.codec.calls import Room
from inagg_host.codec.drafts import FIELDS, FIRST_UNIT, LOWEST, NOBODYS, SERIAL, Drafts, draft_blocks
from inagg_host.codec.encoder import encode
from inagg_host.codec.past_caches import STREAM_FROM
from inagg_host.codec.scales import largest_magnitudes
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import SCALE_BIAS, FloatType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

JOB = make_job("nat8", FloatType.FLOAT32)
LARGE = make_job("nat8", FloatType.FLOAT32, lanes=1448)
NUMBER = 1001
"""Of the first block."""
EXPECTED = 100
"""The exponent field of the unit that is expected, unless a test says another: 2**-27."""
UNIT, MOST = 2.0 ** (EXPECTED - 127), 2.0 ** (EXPECTED + FIELDS - 127)


class Made(NamedTuple):
    """Drafts, where they were made."""

    datagrams: Bytes
    drafts: Drafts
    serial: int
    magnitudes: npt.NDArray[np.uint64]
    contributed: Floats
    """What the codes stand for."""

    @property
    def lowest(self) -> list[int]:
        """Of the drafts, in any order."""
        notes = self.drafts.notes
        return [int(lowest) for lowest in notes[notes[:, SERIAL] != NOBODYS, LOWEST]]


BEHIND = 64
"""Elements that are nobody's, after what drafts stand for."""


def drafts_in(room: Room) -> Drafts:
    return Drafts(*(room.arrays[name] for name in Drafts._fields))


def drafts_of(
    values: Floats, job: Job = JOB, *, serial: int = 7, number: int = NUMBER, expected: int = EXPECTED, shards: int = 1,
    skew: int = 0,
) -> Made:  # fmt: skip
    """Of all blocks, in as many rows for each shard as there are blocks, or more. ``skew``: so many elements from where
    numpy puts it, what they stand for is in memory."""
    count = job.blocks(values.size)
    rows = shards << (count - 1).bit_length()
    made = Made(
        np.full((rows, job.datagram_bytes), 0x99, np.uint8),
        drafts_in(Room(job, rows)),
        serial,
        np.zeros(count, np.uint64),
        np.full(skew + values.size + BEHIND, 1e9, np.float32)[skew : skew + values.size],
    )
    made.drafts.expected[0] = expected
    draft_blocks(
        job.for_encode, values.view(np.uint32), 0, number, count, shards, serial, made.datagrams, made.drafts,
        made.magnitudes, made.contributed.view(np.uint32),
    )  # fmt: skip
    return made


def row_of(number: int, made: Made, shards: int) -> int:
    rows = len(made.datagrams) // shards
    return number % shards * rows + number // shards % rows


def finished(
    values: Floats, scales: Bytes, made: Made, job: Job = JOB, number: int = NUMBER, shards: int = 1
) -> list[bytes]:
    """The payloads of all blocks, from their drafts. What they stand for was written down as it is decoded."""
    count, payloads = job.blocks(values.size), []
    room = Room(job, 0).arrays
    for i in range(count):
        row = row_of(number + i, made, shards)
        bad = encode(
            job.for_encode, values.view(np.uint32), i, number + i, 1, 1, scales, scales, made.datagrams, row,
            room["words"], room["codes"], made.drafts, made.serial, made.contributed.view(np.uint32),
        )  # fmt: skip
        assert bad == ALL_GOOD
        payloads.append(bytes(made.datagrams[row, HEADER_BYTES:]))
    assert (made.datagrams[:, :HEADER_BYTES] == 0x99).all()
    rows = made.datagrams[[row_of(number + i, made, shards) for i in range(count)], HEADER_BYTES:]
    assert made.contributed.tobytes() == decode_own(job, rows, values.size, scales, scales).tobytes()
    assert made.contributed.base is not None
    assert (made.contributed.base[-BEHIND:] == 1e9).all(), "nothing behind it is written"
    return payloads


def expected(values: Floats, scales: Bytes, job: Job = JOB) -> list[bytes]:
    blocks = enumerate(zip(blocks_of(job, values), scales.tolist(), strict=True))
    return [expected_payload(job, block, NUMBER + i, scale, 0) for i, (block, scale) in blocks]


def own_scales(values: Floats, job: Job = JOB) -> Bytes:
    return agree(job, values)[0]


def magnitudes_of(values: Floats) -> list[int]:
    """Largest magnitudes, as they are found without drafts."""
    found = np.zeros(JOB.blocks(values.size), np.uint64)
    largest_magnitudes(values.view(np.uint32), JOB.lanes, 23, found)
    return [int(magnitude) for magnitude in found]


@pytest.mark.parametrize("expected_", [FIRST_UNIT, EXPECTED, 120])
@pytest.mark.parametrize("larger", [0, 1, 5, 40])
@pytest.mark.parametrize("largest", [63.9, 62.3, 0.0, -20.5, -34.0, -36.0, -62.5, -100.0, -140.0])
def test_a_finished_draft_is_what_the_reference_gives(largest: float, larger: int, expected_: int) -> None:
    """For the block's own scale, and for one that is so many octaves ``larger`` since another worker's values are;
    whatever the unit that was expected."""
    values = random_values(np.random.default_rng(3), 9 * JOB.lanes - 5, FloatType.FLOAT32, largest)
    values[3 * JOB.lanes : 4 * JOB.lanes] = 0.0
    values[::7] = -0.0
    scales = np.minimum(own_scales(values) + larger, 249).astype(np.uint8)
    scales[3] = scales[4]  # so that zeros are encoded, too
    made = drafts_of(values, expected=expected_)
    assert made.magnitudes.tolist() == magnitudes_of(values)
    assert finished(values, scales, made) == expected(values, scales)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=2 * JOB.lanes),
    st.integers(0, 60),
    st.integers(0, 1 << 40),
    st.integers(33, 253),
)
def test_any_floats(floats: list[float], larger: int, number: int, expected_: int) -> None:
    values = np.array(floats, np.float32)
    scales = np.minimum(own_scales(values).astype(np.int64) + larger, 249).astype(np.uint8)
    made = drafts_of(values, number=number, expected=expected_)
    want = [
        expected_payload(JOB, block, number + i, int(scales[i]), 0) for i, block in enumerate(blocks_of(JOB, values))
    ]
    assert finished(values, scales, made, number=number) == want


@pytest.mark.parametrize("skew", [0, 1])
def test_what_much_stands_for_is_right_wherever_it_is(skew: int) -> None:
    """It goes past the caches, if its memory allows that."""
    values = np.random.default_rng(5).standard_normal(STREAM_FROM + 5, np.float32)  # of which drafts are of use
    made = drafts_of(values, LARGE, skew=skew)
    finished(values, own_scales(values, LARGE), made, LARGE)


@pytest.mark.parametrize("octaves", range(-8, 9))
def test_the_unit_may_be_another_than_expected(octaves: int) -> None:
    """By so many, with a few values around both and below."""
    rng, blocks = np.random.default_rng(octaves & 255), 16
    largest = 2.0 ** (octaves + 28) * UNIT  # with three workers the unit is 2**-28 of the scale
    values = rng.choice([-0.9, -0.0, 0.3, 1.0], (blocks, LARGE.lanes))
    for block in values:
        block[rng.integers(0, LARGE.lanes, 5)] = 2.0 ** -rng.uniform(10, 40, 5)
        block[0] = 1.0
    floats = (values * largest).astype(np.float32).reshape(-1)
    scales = own_scales(floats, LARGE)
    assert finished(floats, scales, drafts_of(floats, LARGE), LARGE) == expected(floats, scales, LARGE)


@pytest.mark.parametrize("shards", [2, 3])
def test_each_shard_has_its_rows(shards: int) -> None:
    values = np.random.default_rng(shards).standard_normal(11 * JOB.lanes, np.float32)
    scales, made = own_scales(values), drafts_of(values, shards=shards)
    assert finished(np.zeros_like(values), scales, made, shards=shards) == expected(values, scales)


def test_the_unit_of_the_block_that_was_finished_last_is_expected() -> None:
    values = np.random.default_rng(4).standard_normal(3 * JOB.lanes, np.float32)
    values[JOB.lanes :] *= 8
    made, scales = drafts_of(values), own_scales(values)
    finished(values, scales, made)
    assert made.drafts.expected[0] == int(scales[-1]) - SCALE_BIAS - 28 + 127  # with three workers
    assert (made.drafts.notes[:, SERIAL] == NOBODYS).all()


@pytest.mark.parametrize("octaves", [26, 27, 28, 29, 30])
def test_values_around_the_unit(octaves: int) -> None:
    """With three workers the unit is 2**-28 of the scale: what is below needs more than its draft."""
    rng = np.random.default_rng(octaves)
    values = np.full(64 * JOB.lanes, 1.0, np.float32)
    low = 2.0**-octaves * rng.choice([0.50001, 0.9, 0.99999, 1.0, 1.00001, 1.5, 1.99999], 63 * JOB.lanes)
    values.reshape(64, -1)[:63, 1:] = low.reshape(63, -1)[:, 1:]
    scales = own_scales(values)
    assert finished(values, scales, drafts_of(values)) == expected(values, scales)


GROUPS = 45
"""Of 32 lanes, whole ones, in a large block."""


@pytest.mark.parametrize("groups", [[0], [1, 20, 44], list(range(2, 13)), [45]])
@pytest.mark.parametrize("octaves", [26.5, 29.5, 35.5, 50.0])
def test_a_few_values_below_the_unit_are_encoded_anew_and_no_others(groups: list[int], octaves: float) -> None:
    """In up to a quarter of the groups; what has become of the values of others meanwhile plays no part."""
    rng = np.random.default_rng(len(groups))
    values = rng.uniform(1.0, 2.0, LARGE.lanes).astype(np.float32) * rng.choice([-1, 1], LARGE.lanes).astype("f4")
    values[5::9] = 0.0
    for group in groups:
        lanes = 32 * group + rng.integers(0, 32 if group < GROUPS else LARGE.lanes % 32, 3)
        values[lanes] *= np.float32(2.0**-octaves)
        values[lanes[0]] = np.float32(2.0**-octaves)
    scales, made = own_scales(values, LARGE), drafts_of(values, LARGE)
    want = expected(values, scales, LARGE)
    mine = np.isin(np.arange(LARGE.lanes) // 32, groups)
    assert finished(np.where(mine, values, np.float32(1.5)), scales, made, LARGE) == want


def test_one_value_below_the_unit_wherever_it_is_is_encoded_anew() -> None:
    """One in each block, at each of the last lanes, four times; the last block has fewer lanes."""
    blocks = 4 * 96
    values = np.full((blocks, LARGE.lanes), 1.0, np.float32)
    for i in range(blocks - 1):
        values[i, -1 - i // 4] = 0.49 * 2.0**-28
    values[-1, -6] = 0.49 * 2.0**-28
    floats = values.reshape(-1)[:-5]
    scales = own_scales(floats, LARGE)
    assert finished(floats, scales, drafts_of(floats, LARGE), LARGE) == expected(floats, scales, LARGE)


@given(st.integers(0, 1448), st.integers(0, 2**32 - 1))
def test_any_number_of_values_below_the_unit(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(LARGE.lanes, np.float32)
    values[rng.permutation(LARGE.lanes)[:count]] *= np.float32(2.0**-33)
    scales = own_scales(values, LARGE)
    assert finished(values, scales, drafts_of(values, LARGE), LARGE) == expected(values, scales, LARGE)


def test_drafts_are_used() -> None:
    """What has become of the values meanwhile plays no part."""
    values = np.random.default_rng(5).standard_normal(5 * JOB.lanes, np.float32)
    scales, made = own_scales(values), drafts_of(values)
    assert finished(np.zeros_like(values), scales, made) == expected(values, scales)


@pytest.mark.parametrize(("serial", "number"), [(8, NUMBER), (7, NUMBER + 1)])
def test_drafts_of_others_are_not_used(serial: int, number: int) -> None:
    """Those of another operation, or with the noise of another block."""
    rng = np.random.default_rng(6)
    values, others = rng.standard_normal((2, 5 * JOB.lanes), np.float32)
    scales = own_scales(values)
    made = drafts_of(others, serial=serial, number=number)._replace(serial=7)
    made.drafts.notes[:] = np.roll(made.drafts.notes, NUMBER - number, axis=0)  # in the rows of this one's blocks
    assert finished(values, scales, made) == expected(values, scales)


@pytest.mark.parametrize("above", [0, 1, 5])
def test_values_just_below_the_unit_of_drafts(above: int) -> None:
    """Some are rounded up to it, which is right, if it is the unit; or else they are encoded anew."""
    values = np.full(200 * LARGE.lanes, 2.0**27 * UNIT, np.float32)
    values[:: LARGE.lanes] = np.random.default_rng(above).choice([0.6, 0.9, 0.99], 200) * np.float32(UNIT)
    scales, made = np.full(200, own_scales(values, LARGE)[0] + above, np.uint8), drafts_of(values, LARGE)
    assert set(made.lowest) == {1, 28}
    assert finished(values, scales, made, LARGE) == expected(values, scales, LARGE)


@pytest.mark.parametrize("value", [MOST, np.inf, -np.inf, np.nan])
def test_a_draft_of_values_too_far_above_the_unit_is_of_no_use(value: float) -> None:
    values = np.ones(JOB.lanes, np.float32)
    values[5] = np.nextafter(np.float32(MOST), np.float32(0))
    assert 0 not in drafts_of(values).lowest
    values[3] = value
    made = drafts_of(values)
    assert made.lowest == [0]
    assert made.magnitudes.tolist() == magnitudes_of(values)


@pytest.mark.parametrize("lanes", [8, 32, 104, 1448])
def test_blocks_of_any_size(lanes: int) -> None:
    job = make_job("nat8", FloatType.FLOAT32, lanes=lanes, seed=SEED + 1)
    values = np.random.default_rng(lanes).standard_normal(3 * lanes - 3, np.float32)
    scales = own_scales(values, job)
    assert finished(np.zeros_like(values), scales, drafts_of(values, job), job) == expected(values, scales, job)


@pytest.mark.parametrize(("name", "float_type"), [("nat4", FloatType.FLOAT32), ("nat8", FloatType.FLOAT16)])
def test_no_room_where_there_are_no_drafts(name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type)
    assert not job.drafts
    assert len(Room(job, 8).arrays["notes"]) == 0
