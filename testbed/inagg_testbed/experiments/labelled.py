"""Sparse samples of two classes: from a LIBSVM file, or made here with the statistics of two that the papers use."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse

from .model import SettingsError

Array = npt.NDArray[np.float64]

FEATURES_MAX = 10_000_000

WORDS = 74
"""Different words in a document of RCV1, in the mean: 1,498,952 entries of its 20,242 documents for training."""
VOCABULARY, DOCUMENTS = 47_236, 20_242
TILTED, TILT = 0.2, 2.0
"""This share of the words is this much more frequent in the documents of one class than of the other: then a linear
classifier errs on about one document in twenty that it has not seen, as on RCV1."""
REPEATED = 1.18
"""Draws for each different word; some words are drawn again."""

CENSUS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""Values of the 14 properties of a person in a9a (Adult), each a feature of its own: 123 in all."""
ABOVE, UNSURE = 0.24, 0.7
"""The share of positive labels there; and how much of a label is chance, over the spread of what features say."""


class DataError(SettingsError):
    """A file with which nothing can be done; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """``samples``: (m, d), sparse, a row each; ``labels``: (m,) of +-1."""

    name: str
    samples: scipy.sparse.csr_array
    labels: Array

    @property
    def described(self) -> str:
        """In words, for notes and titles."""
        (m, d), entries = self.samples.shape, self.samples.nnz
        return (
            f"{self.name}: {m:,} samples of {d:,} features, {entries / m:.1f} of them not zero ({entries / m / d:.2%})"
        )


def load(path: Path) -> Labelled:
    """The file ``path`` in the LIBSVM (svmlight) format, .gz or .bz2 too; the greater of its two labels becomes +1.

    Raises DataError.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        samples, labels = load_svmlight_file(str(path))
    except (OSError, ValueError, EOFError, OverflowError) as error:
        why = textwrap.shorten(str(error), 100, placeholder=" ...")
        raise DataError(f"{path} is no LIBSVM file (lines of 'label index:value ...'): {why}") from None
    found = np.unique(labels)
    samples.eliminate_zeros()
    if samples.shape[0] < 2 or samples.nnz == 0:
        raise DataError(f"{path} has {samples.shape[0]} samples and {samples.nnz} values: nothing to learn from")
    if samples.shape[1] > FEATURES_MAX:
        raise DataError(
            f"{path} has {samples.shape[1]:,} features: {FEATURES_MAX:,} are the most, as iterates are dense"
        )
    if len(found) != 2:
        shown = ", ".join(f"{label:g}" for label in found[:5]) + (", ..." if len(found) > 5 else "")
        raise DataError(f"{path} has {len(found)} different labels ({shown}): two are needed")
    if not np.isfinite(samples.data).all():
        raise DataError(f"{path} has values that are not finite")
    rows = scipy.sparse.csr_array(samples, dtype=np.float64)
    return Labelled(path.name, rows, np.where(labels == found[1], 1.0, -1.0))


def like_rcv1(rng: np.random.Generator, documents: int = DOCUMENTS, vocabulary: int = VOCABULARY) -> Labelled:
    """Documents as bags of words: Zipf's law, about `WORDS` different words in each, tf-idf, rows of length 1.

    Half of the documents are of either class; words are more frequent in one or the other. A smaller ``vocabulary``
    leaves the documents as long as they are. No function of numpy is used whose last digit depends on the processor.
    """
    zipf = 1 / (2.7 + np.arange(vocabulary))
    tilts = rng.random(vocabulary) < TILTED
    towards = np.where(rng.random(vocabulary) < 0.5, TILT, 1 / TILT)
    labels = np.where(rng.random(documents) < 0.5, 1.0, -1.0)
    # Lengths are skewed as those of texts are: a product of three uniform numbers, of mean 1.
    mean_draws = min(REPEATED * WORDS, vocabulary / 2)
    lengths = np.maximum(3, (mean_draws * np.prod(2 * rng.random((3, documents)) ** 0.5 * 0.75, axis=0))).astype(int)
    rows, words = np.repeat(np.arange(documents), lengths), np.empty(lengths.sum(), np.int64)
    for label in (1.0, -1.0):
        weights = np.cumsum(zipf * np.where(tilts, towards**label, 1.0))
        mine = np.repeat(labels == label, lengths)
        words[mine] = np.searchsorted(weights, rng.random(int(mine.sum())) * weights[-1], side="right")
    counts = scipy.sparse.csr_array((np.ones(words.size), (rows, words)), shape=(documents, vocabulary))
    counts.sum_duplicates()
    frequent = np.bincount(counts.indices, minlength=vocabulary)
    rarity = np.array([math.log(documents / max(1, n)) for n in frequent.tolist()])
    often = np.array([0.0] + [1 + math.log(n) for n in range(1, int(counts.data.max()) + 1)])
    counts.data = often[counts.data.astype(int)] * rarity[counts.indices]
    lengths_squared = np.add.reduceat(counts.data**2, counts.indptr[:-1])
    counts.data /= np.repeat(np.sqrt(np.maximum(lengths_squared, 1e-30)), np.diff(counts.indptr))
    return Labelled("made as RCV1", counts, labels)


def like_a9a(rng: np.random.Generator, people: int = 32_561) -> Labelled:
    """People with 14 properties (`CENSUS`), each one of several values: 14 ones of 123 features a row."""
    columns, score = np.empty((people, len(CENSUS)), np.int64), np.zeros(people)
    first = 0
    for which, values in enumerate(CENSUS):
        weights = np.cumsum(1 / (1 + rng.permutation(values)))
        drawn = np.searchsorted(weights, rng.random(people) * weights[-1], side="right")
        score += rng.standard_normal(values)[drawn]
        columns[:, which] = first + drawn
        first += values
    score += UNSURE * float(score.std()) * rng.standard_normal(people)
    labels = np.where(score > np.sort(score)[int((1 - ABOVE) * people)], 1.0, -1.0)
    starts = np.arange(0, columns.size + 1, len(CENSUS))
    samples = scipy.sparse.csr_array((np.ones(columns.size), columns.ravel(), starts), shape=(people, first))
    return Labelled("made as a9a", samples, labels)
