"""The noise of compressors, and the coordinates that it chooses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from inagg_host.compress import Key, RandK, UltraSparse, parse
from inagg_host.compress.key import CHUNK, SHARED
from inagg_wire.noise import WORD_SHIFT, hashes
from inagg_wire.noise_keys import block_key


def test_noise_is_the_same_for_ever() -> None:
    """Golden values: a run that is replayed with a later version has the same bits."""
    key = Key(seed=0x5EED0001, rank=1, step=2, tensor=3)
    assert [hex(word) for word in key.words(3)] == GOLDEN[0]
    assert [hex(word) for word in key.child(1).words(2, 1)] == GOLDEN[1]
    assert [hex(word) for word in key.shared().words(CHUNK + 2)[CHUNK:]] == GOLDEN[2]


GOLDEN = (["0xc3d49365", "0x62331a2a", "0x408861b4"], ["0x7e0fc719", "0xc0400d2e"], ["0xc41d332b", "0xcb3f19c4"])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1003])
@pytest.mark.parametrize("index", [0, 3])
def test_noise_is_that_of_the_document(count: int, index: int) -> None:
    """The compiled loop against the reference, with tails shorter than a vector."""
    key = Key(seed=0xFFFFFFF0, rank=SHARED, step=5, tensor=6).child(2)
    run = block_key(key.seed, key.rank, key.step)
    stream = block_key(run.k0, run.k1, key.tensor)
    counters = np.arange(count, dtype=np.uint32) + np.uint32(index << WORD_SHIFT)
    expected = hashes(block_key(stream.k0, stream.k1, key.use << 32), counters)
    assert (key.words(count, index) == expected).all()


def test_what_is_below_a_probability_is_what_uniforms_say() -> None:
    p = np.random.default_rng(0).random(5000)
    p[:3] = 0.0, 1.0, 2.0**-53
    assert (Key(4).below(p) == (Key(4).uniforms(p.size) < p)).all()


def test_fewer_elements_have_the_beginning_of_the_noise_of_more() -> None:
    key = Key(1)
    long = key.words(CHUNK + 10)
    assert (key.words(10) == long[:10]).all()
    assert (long[CHUNK:] != long[:10]).all()


@pytest.mark.parametrize("other", [{"seed": 2}, {"rank": 1}, {"step": 1}, {"tensor": 1}, {"use": 1}])
def test_every_part_of_a_key_matters(other: dict[str, int]) -> None:
    one, two = Key(1).uniforms(1000), replace(Key(1), **other).uniforms(1000)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.15
    assert abs(one.mean() - 0.5) < 0.05


def test_parts_of_parts_have_noise_of_their_own() -> None:
    key = Key(1)
    keys = {key.child(i).child(j) for i in range(15) for j in range(15)} | {key.child(i) for i in range(15)} | {key}
    assert len(keys) == 15 * 15 + 15 + 1
    with pytest.raises(ValueError, match="from 0 to 14"):
        key.child(15)


def test_all_ranks_choose_the_same_coordinates_and_each_step_others() -> None:
    chosen = [RandK(0.1).where(1000, Key(5, rank, step)).tolist() for step in range(2) for rank in range(2)]
    assert chosen[0] == chosen[1]
    assert chosen[2] == chosen[3]
    assert chosen[0] != chosen[2]
    assert len(set(chosen[0])) == 100
    assert chosen[0] == sorted(chosen[0])


def test_every_subset_is_as_likely() -> None:
    draws = 4000
    counts = Counter(tuple(RandK(2).where(5, Key(3, 0, step)).tolist()) for step in range(draws))
    assert set(counts) == set(combinations(range(5), 2))
    expected = draws / 10
    assert max(abs(count - expected) for count in counts.values()) < 5 * np.sqrt(expected)


def test_ultra_sparse_sends_one_coordinate_in_so_many_steps() -> None:
    draws, k = 3000, 0.3
    chosen = [UltraSparse(k).where(4, Key(3, 0, step)).tolist() for step in range(draws)]
    counts = Counter(map(tuple, chosen))
    assert set(counts) == {(), (0,), (1,), (2,), (3,)}
    assert abs(counts[()] - draws * (1 - k)) < 5 * np.sqrt(draws * k * (1 - k))
    assert max(abs(counts[(i,)] - draws * k / 4) for i in range(4)) < 5 * np.sqrt(draws * k / 4)


@pytest.mark.parametrize(
    "text", ["natural", "qsgd:s=3", "terngrad:scaler=own", "natural+randk:k=0.1", "natural_dithering", "topk:k=0.1"]
)
def test_the_same_key_gives_the_same_bytes(text: str) -> None:
    x = np.random.default_rng(1).standard_normal(3000).astype(np.float32)
    compressor, key = parse(text), Key(1, 2, 3, 4)
    assert compressor.compress(x, key) == compressor.compress(x.copy(), key)
    if text != "topk:k=0.1":
        assert compressor.compress(x, key) != compressor.compress(x, replace(key, step=4))
