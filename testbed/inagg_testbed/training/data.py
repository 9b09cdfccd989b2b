"""The digits of scikit-learn as tensors: 1797 pictures of 8 by 8, part of the package, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import sklearn.datasets
import torch

TEST_SHARE = 0.25
SPLIT_SEED = 20181018


@dataclass(frozen=True, slots=True)
class Digits:
    """``images``: float32 of shape (count, 1, 8, 8), from 0 to 1; ``labels``: int64 of shape (count,)."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, rank: int, workers: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One epoch of this rank's batches of ``size``, in an order that ``seed`` gives.

        The ranks share out the digits; what does not fill a batch on all ranks is left out, so all have equally many.
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        for start in range(0, len(self) - size * workers + 1, size * workers):
            mine = order[start + rank * size : start + (rank + 1) * size]
            yield self.images[mine], self.labels[mine]


@cache
def load_digits() -> tuple[Digits, Digits]:
    """Load the digits for training and those for testing; always the same, and not to be changed."""
    pictures, labels = sklearn.datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(pictures).float().view(-1, 1, 8, 8) / 16
    digits = Digits(images, torch.from_numpy(labels).long())
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SPLIT_SEED))
    test, training = order.tensor_split([int(len(digits) * TEST_SHARE)])
    return Digits(digits.images[training], digits.labels[training]), Digits(digits.images[test], digits.labels[test])
