"""Sparse data: LIBSVM files, whole and broken, what is made in their place, and logistic regression on both kinds."""

from __future__ import annotations

import bz2
import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from inagg_testbed.experiments.labelled import DataError, like_a9a, like_rcv1, load
from inagg_testbed.experiments.logistic import Logistic
from inagg_testbed.experiments.model import SettingsError
from inagg_testbed.experiments.regressions import few_features

GOOD = b"2 1:0.5 3:1\n1 2:1 # a remark\n2 4:-2e-1\n"


@pytest.mark.parametrize(("name", "pack"), [("x.svm", bytes), ("x.svm.gz", gzip.compress), ("x.svm.bz2", bz2.compress)])
def test_a_libsvm_file_is_read_and_the_greater_label_is_plus_one(tmp_path: Path, name: str, pack: type[bytes]) -> None:
    path = tmp_path / name
    path.write_bytes(pack(GOOD))
    found = load(path)
    assert found.samples.toarray().tolist() == [[0.5, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, -0.2]]
    assert found.labels.tolist() == [1, -1, 1]
    assert found.described == f"{name}: 3 samples of 4 features, 1.3 of them not zero (33.33%)"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 samples and 0 values"),
        (b"hello world\n", "is no LIBSVM file"),
        (b"1 1:0.5 3\n-1 2:1\n", "is no LIBSVM file"),
        (b"1 3:0.5 1:1\n-1 2:1\n", "is no LIBSVM file"),
        (b"1 1:x\n", "is no LIBSVM file"),
        (b"1 1:0\n-1 2:0\n", "has 2 samples and 0 values"),
        (b"1 1:nan\n-1 2:1\n", "values that are not finite"),
        (b"1 1:1\n1 2:1\n", "has 1 different labels (1): two are needed"),
        (b"1 1:1\n2 2:1\n3 1:1\n", "has 3 different labels (1, 2, 3): two are needed"),
        (b"1 20000000:1\n-1 2:1\n", "20,000,000 features: 10,000,000 are the most"),
        (bytes(range(256)), "is no LIBSVM file"),
    ],
)
def test_a_broken_file_is_told_with_what_is_wrong(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.svm"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(words)):
        load(path)


def test_a_file_that_says_gz_and_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(GOOD)
    with pytest.raises(DataError, match="is no LIBSVM file"):
        load(path)


def test_methods_with_matrices_take_few_features_and_enough_samples() -> None:
    wide = like_rcv1(np.random.default_rng(1), 50, 3000)
    with pytest.raises(DataError, match="3,000 features: 2,000 are the most"):
        few_features(wide, 4)
    with pytest.raises(DataError, match="20 samples: too few for 16 workers"):
        few_features(like_a9a(np.random.default_rng(1), 20), 16)


def test_documents_are_made_with_the_statistics_of_rcv1() -> None:
    made = like_rcv1(np.random.default_rng(1))
    words = np.diff(made.samples.indptr)
    assert made.samples.shape == (20_242, 47_236)
    assert words.mean() == pytest.approx(74, rel=0.05)
    assert words.min() >= 1
    assert np.allclose((made.samples**2).sum(axis=1), 1)
    assert made.labels.mean() == pytest.approx(0, abs=0.05)
    often = np.sort(np.bincount(made.samples.indices, minlength=47_236))[::-1]
    assert often[0] > 20 * often[1000] > 0, "words follow Zipf's law"


def test_people_are_made_with_the_statistics_of_a9a() -> None:
    made = like_a9a(np.random.default_rng(1))
    assert made.samples.shape == (32_561, 123)
    assert (np.diff(made.samples.indptr) == 14).all()
    assert set(made.samples.data) == {1.0}
    assert (made.labels > 0).mean() == pytest.approx(0.24, abs=0.001)


def test_the_same_generator_makes_the_same() -> None:
    first, second = (like_rcv1(np.random.default_rng(3), 100, 500) for _ in range(2))
    assert (first.samples != second.samples).nnz == 0
    assert np.array_equal(first.labels, second.labels)


def test_sparse_and_dense_samples_make_the_same_problem() -> None:
    made = like_a9a(np.random.default_rng(2), 300)
    sparse, dense = (Logistic(samples, made.labels, 1e-2) for samples in (made.samples, made.samples.toarray()))
    x = np.random.default_rng(5).standard_normal(123)
    assert isinstance(sparse.samples, scipy.sparse.csr_array)
    assert sparse.loss(x) == pytest.approx(dense.loss(x))
    assert np.allclose(sparse.gradient(x), dense.gradient(x))
    assert np.allclose(sparse.sample_gradient(x, 7), dense.sample_gradient(x, 7))
    assert np.allclose(sparse.minimizer, dense.minimizer, atol=1e-9)
    assert np.abs(sparse.gradient(sparse.minimizer)).max() < 1e-12


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_features_of_a_size_at_which_nothing_can_be_learned_are_told_so() -> None:
    huge = Logistic(np.array([[1e300, 1.0], [-1e300, 2.0]]), np.array([1.0, -1.0]), 1e-2)
    with pytest.raises(SettingsError, match=r"the gradient is .*, not below 1e-12\): scale the features"):
        _ = huge.minimizer
