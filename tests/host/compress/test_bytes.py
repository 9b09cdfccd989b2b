"""What compressors write, and what they say to what others wrote; compressors by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_host.compress import (
    Compressor,
    Contraction,
    Floats,
    Key,
    NoBound,
    TernGrad,
    TopK,
    names,
    parse,
    register,
    registry,
)
from inagg_host.compress.codes import pack, unpack
from inagg_host.compress.sparse import largest

D = 1000

SIZES = [
    ("natural", 9 / 8 * D, 12 / 8 * D),
    ("qsgd:s=1", 4 + 2 / 8 * D, 8 + 2 / 8 * D),
    ("qsgd:s=7", 4 + 4 / 8 * D, 8 + 4 / 8 * D),
    ("dithering", 4 + D, 8 + D),
    ("natural_dithering:s=7", 4 + 4 / 8 * D, 8 + 4 / 8 * D),
    ("terngrad:scaler=own", 4 + 2 / 8 * D, 8 + 2 / 8 * D),
    ("topk:k=10", 10 * 8, 10 * 12),
    ("randk:k=10", 10 * 8, 10 * 12),
    ("blocktopk:k=2,block=100", 2 * (4 + 400), 2 * (4 + 800)),
    ("natural+topk:k=80", 4 + 80 * 4 + 90, 4 + 80 * 4 + 120),
    ("ef+topk:k=1", 8, 12),
]


@pytest.mark.parametrize(("text", "single", "double"), SIZES, ids=[text for text, *_ in SIZES])
def test_bytes_of_a_vector(text: str, single: float, double: float) -> None:
    x = np.random.default_rng(1).standard_normal(D)
    assert len(parse(text).compress(x.astype(np.float32), Key(1))) == single
    assert len(parse(text).compress(x, Key(1))) == double


EVERY = [
    *(text for text, *_ in SIZES),
    "ultrasparse:k=0.9",
    "natural+qsgd",
    "topk:k=5+natural",
    "blocktopk:k=0.5,block=7",
    "qsgd+blocktopk:k=0.5,block=7",
]


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("d", [1, 2, 13, 257])
def test_any_length_and_zeros(text: str, d: int) -> None:
    compressor = parse(text)
    for x in (np.linspace(-1, 2, d), np.zeros(d)):
        got = compressor(x.astype(np.float32), Key(1))
        assert got.shape == (d,)
        assert got.dtype == np.float32
        assert np.isfinite(got).all()
        assert x.any() or not got.any()


@pytest.mark.parametrize("text", EVERY)
def test_what_comes_in_is_not_changed(text: str) -> None:
    x = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    x.flags.writeable = False
    parse(text)(x, Key(1))


@pytest.mark.parametrize("text", [text for text in EVERY if "ultra" not in text])
def test_bytes_of_another_length_are_refused(text: str) -> None:
    compressor = parse(text)
    data = compressor.compress(np.ones(300, np.float32), Key(1))
    with pytest.raises(ValueError, match="bytes where"):
        compressor.decompress(data[:-1], 300, np.float32)


def test_indices_beyond_the_vector_are_refused() -> None:
    data = TopK(2).compress(np.arange(100.0), Key(1))
    with pytest.raises(ValueError, match="index 99 of 50"):
        TopK(2).decompress(data, 50, np.float64)


def test_codes_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="none of -1, 0 and 1"):
        TernGrad().decompress(bytes([0, 0, 128, 63, 0b10_00_00_00]), 4, np.float32)
    with pytest.raises(ValueError, match="a level beyond 2"):
        parse("qsgd:s=2").decompress(bytes([0, 0, 128, 63, 0b111_00000]), 1, np.float32)


@pytest.mark.parametrize("x", [np.ones((2, 2)), np.ones(3, np.float16), np.ones(3, np.int64)])
def test_only_vectors_of_floats_are_taken(x: Floats) -> None:
    for text in ("natural", "qsgd", "terngrad", "topk:k=1"):
        with pytest.raises(ValueError, match="give a 1-D array of float32 or float64"):
            parse(text).compress(x, Key(1))


@given(st.integers(1, 32), st.lists(st.integers(0, (1 << 32) - 1), max_size=40))
def test_codes_survive(width: int, values: list[int]) -> None:
    codes = np.array(values, np.uint32) & np.uint32((1 << width) - 1)
    data = pack(codes, width)
    bits = "".join(f"{code:0{width}b}" for code in codes.tolist())
    assert data == bytes(int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8))
    assert (unpack(data, codes.size, width) == codes).all()


def test_codes_begin_with_the_most_significant_bit() -> None:
    assert pack(np.array([1, 2, 3], np.uint32), 2) == bytes([0b01_10_11_00])


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    x = np.array([1.0, -2.0, 2.0, 2.0, 0.5])
    assert TopK(2)(x, Key(1)).tolist() == [0.0, -2.0, 2.0, 0.0, 0.0]


def test_what_is_not_finite_is_above_everything() -> None:
    """So it is among what is kept, and all ranks hear of it."""
    magnitudes = np.array([1.0, np.nan, 3.0, np.inf])
    assert 1 in largest(magnitudes, 1)
    assert largest(magnitudes, 2).tolist() == [1, 3]


# --- by name ---


def test_names_and_options() -> None:
    ours = "blocktopk dithering natural natural_dithering qsgd randk terngrad topk ultrasparse"
    assert names()[0] == "ef"
    assert set(ours.split()) <= set(names()), "other tests may register more"
    assert parse("topk:k=3") == TopK(3)
    assert parse(" terngrad : clip=0, scaler=own ") == TernGrad(0, "own")
    assert repr(parse("ef:damping=0.5+natural+randk:k=1.0,scaled=no")) == (
        "ErrorFeedback(inner=Composed(outer=Natural(), inner=RandK(k=1.0, scaled=False)), damping=0.5)"
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no compressor is called ''"),
        ("topk:0.1", "options are name=value"),
        ("topk:k=0", "k = 0: give a whole number from 1"),
        ("topk:k=1.5", "k = 1.5: give"),
        ("topk:k=many", "k = 'many': give a whole number from 1"),
        ("topk:k=true", "k = True: give a whole number from 1"),
        ("topk:k=5,k=6", "k is given twice"),
        ("randk:k=0.1,scaled=flase", "scaled = 'flase': give true or false"),
        ("dithering:p=inf,shared=ture", "shared = 'ture': give true or false"),
        ("dithering:p=two", "p = two, s = 127: give p as 1, 2 or inf"),
        ("dithering:s=3.5", "s as a whole number from 1"),
        ("natural_dithering:s=1024", "from 1 to 1023"),
        ("blocktopk:block=2.5", "blocks of 2.5 elements"),
        ("terngrad:clip=none", "give clip in standard deviations"),
        ("ultrasparse:k=half", "give a probability"),
        ("topk:p=1", r"topk does not take .*: it takes k \(needed\)"),
        ("natural:p=1", "it takes no options"),
        ("qsgd:p=3", "give p as 1, 2 or inf"),
        ("qsgd:s=0", "s as a whole number from 1"),
        ("dithering:shared=true", "give p=inf,s=127"),
        ("natural_dithering:shared=true", "give p=inf,s=7"),
        ("terngrad:scaler=mine", "layer, block, own"),
        ("ultrasparse:k=2", "for whole coordinates take randk"),
        ("blocktopk:block=0", "blocks of 0 elements"),
        ("ef", "around another compressor"),
        ("natural+ef+topk:k=1", "give ef first"),
        ("ef+ef+topk:k=1", "give ef once"),
        ("ef:damping=2+natural", "damping = 2"),
        ("ef:d=2+natural", "it takes damping"),
    ],
)
def test_what_is_no_compressor_is_said(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse(text)


def test_a_count_may_be_an_integer_of_numpys() -> None:
    k: Any = np.int64(1)
    assert TopK(k).bound(4) == Contraction(0.25)


@pytest.mark.parametrize("text", [text for text, *_ in SIZES])
def test_of_no_elements_nothing_is_lost(text: str) -> None:
    compressor, nothing = parse(text), np.empty(0, np.float32)
    assert compressor(nothing, Key(1)).tolist() == []
    assert not isinstance(compressor.bound(0), NoBound) or text.startswith("terngrad")
    assert compressor.remark(0) is None


class Mine(Compressor):
    """One's own, as a plain class."""

    def __init__(self, power: int = 1) -> None:
        self.power = power

    def bound(self, d: int) -> Contraction:
        return Contraction(1.0)

    def compress(self, x: Floats, key: Key) -> bytes:
        return x.tobytes()

    def decompress(self, data: bytes, d: int, dtype: object) -> Floats:
        return np.frombuffer(data, dtype)  # type: ignore[call-overload, no-any-return]


def test_one_of_ones_own_is_told_by_its_settings() -> None:
    assert repr(Mine()) == "Mine(power=1)", "and not by where it lies: checkpoints compare that"
    assert Mine(2) == Mine(2) != Mine(1)
    assert len({Mine(1), Mine(1), Mine(2)}) == 2


def test_what_goes_wrong_in_a_compressor_of_ones_own_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the options: its own mistake is another."""

    def make(power: int = 1) -> Compressor:
        raise TypeError(f"a mistake with {power}")

    monkeypatch.setitem(registry._makers, "mistaken", make)
    with pytest.raises(TypeError, match="a mistake with 2"):
        parse("mistaken:power=2")


def test_a_name_can_be_registered_once() -> None:
    register("mine", Mine)
    with pytest.raises(ValueError, match=r"mine does not take .*: it takes power"):
        parse("mine:k=1")
    assert parse("ef+mine").decompress(b"\0" * 8, 2, np.float32).tolist() == [0.0, 0.0]
    for taken in ("mine", "topk", "ef"):
        with pytest.raises(ValueError, match="choose another name"):
            register(taken, Mine)
    with pytest.raises(ValueError, match="small letters"):
        register("My-own", Mine)
