"""Pictures of 32 x 32 in three colours and ten classes: CIFAR-10 from its files, or shapes that are made here."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

SIDE, COLOURS, CLASSES = 32, 3, 10
TRAINING, TESTING = 6000, 1000
"""Pictures that are made."""
LOOKED_AT = 2000
"""Number of CIFAR-10's pictures for testing; all of them would take longer than the training between."""
SEED = 20091018
STRIPES, NOISE = 0.25, 0.1
"""Largest difference in colour between stripes, and the standard deviation of each pixel's noise."""
CIFAR_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR_TEST = "test_batch"
CIFAR_BYTES = COLOURS * SIDE * SIDE

Array = npt.NDArray[np.float32]


class DataError(ValueError):
    """A folder with which nothing can be done; the message says why."""


@dataclass(frozen=True, slots=True)
class Images:
    """``pixels``: float32 of shape (count, 3, 32, 32), mean 0 and variance 1; ``labels``: int64 of shape (count,)."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def batches(self, size: int, rank: int, workers: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches of ``size``, without end; all ranks draw from one order that ``seed`` gives."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            drawn = torch.randint(len(self.labels), (size * workers,), generator=generator)
            mine = drawn[rank * size : (rank + 1) * size]
            yield self.pixels[mine], self.labels[mine]


def load_images(folder: Path | None) -> tuple[Images, Images]:
    """Load pictures for training and for testing: of CIFAR-10's folder ``cifar-10-batches-py``, or made here.

    Raises DataError if the folder is none of CIFAR-10 for Python.
    """
    if folder is None:
        pixels, labels = shapes(TRAINING + TESTING, np.random.default_rng(SEED))
        both = [(pixels[:TRAINING], labels[:TRAINING]), (pixels[TRAINING:], labels[TRAINING:])]
    else:
        parts = [_cifar_file(folder / name) for name in CIFAR_FILES]
        test_pixels, test_labels = _cifar_file(folder / CIFAR_TEST)
        joined = np.concatenate([p for p, _ in parts]), np.concatenate([labels for _, labels in parts])
        both = [joined, (test_pixels[:LOOKED_AT], test_labels[:LOOKED_AT])]
    mean = both[0][0].mean(axis=(0, 2, 3), keepdims=True)
    deviation = both[0][0].std(axis=(0, 2, 3), keepdims=True)
    training, testing = (Images(torch.from_numpy((p - mean) / deviation), torch.from_numpy(n)) for p, n in both)
    return training, testing


# --- made here ---


def shapes(count: int, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.int64]]:
    """Pictures from 0 to 1, and what they show: one of ten shapes, turned, moved, larger or smaller, striped in any
    colours on other stripes in any colours, under noise. So colour, texture and brightness say nothing of the class."""
    labels = rng.integers(CLASSES, size=count)
    axis = np.linspace(-1, 1, SIDE, dtype=np.float32)
    y, x = np.meshgrid(axis, axis, indexing="ij")

    def one_each(low: float, high: float) -> Array:
        return rng.uniform(low, high, (count, 1, 1)).astype(np.float32)

    angle, size = one_each(0, 2 * np.pi), one_each(0.45, 0.8)
    across, down = (x - one_each(-0.3, 0.3)) / size, (y - one_each(-0.3, 0.3)) / size
    u, v = across * np.cos(angle) + down * np.sin(angle), down * np.cos(angle) - across * np.sin(angle)
    inside = np.empty((count, SIDE, SIDE), np.bool_)
    for label in range(CLASSES):
        mine = labels == label
        inside[mine] = _inside(label, u[mine], v[mine])

    def striped(base: Array) -> Array:
        turn, often = one_each(0, np.pi), one_each(2, 12)
        wave = np.sin(often * (x * np.cos(turn) + y * np.sin(turn)) + one_each(0, 2 * np.pi))
        other = base + STRIPES * rng.uniform(-1, 1, base.shape).astype(np.float32)
        result: Array = np.where(wave[:, None] > 0, base, other)
        return result

    ground = rng.uniform(0, 1, (count, COLOURS, 1, 1)).astype(np.float32)
    figure = (ground + rng.uniform(0.3, 0.7, ground.shape).astype(np.float32)) % 1
    pixels = np.where(inside[:, None], striped(figure), striped(ground))
    pixels += NOISE * rng.standard_normal(pixels.shape, np.float32)
    return pixels, labels


def _inside(label: int, u: Array, v: Array) -> npt.NDArray[np.bool_]:
    square, round_ = np.maximum(np.abs(u), np.abs(v)), u * u + v * v
    result: npt.NDArray[np.bool_] = (
        lambda: round_ < 1,  # disc
        lambda: (round_ < 1) & (round_ > 0.35),  # ring
        lambda: square < 0.85,  # square
        lambda: (square < 0.95) & (square > 0.55),  # frame
        lambda: (v > -0.6) & (np.abs(u) * 1.6 + v < 1),  # triangle
        lambda: (np.minimum(np.abs(u), np.abs(v)) < 0.28) & (square < 1),  # cross
        lambda: (np.abs(u) < 0.3) & (np.abs(v) < 1.2),  # bar
        lambda: (round_ < 1.2) & (v > 0),  # half a disc
        lambda: (np.abs(u) - 0.65) ** 2 + v * v < 0.25,  # two discs
        lambda: np.sqrt(round_) < 0.6 + 0.4 * np.cos(5 * np.arctan2(v, u)),  # star
    )[label]()
    return result


# --- CIFAR-10 ---


class _Arrays(pickle.Unpickler):
    """Reads dictionaries of arrays, and runs no code that a file might name."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "_frombuffer", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of CIFAR-10 does")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _cifar_file(path: Path) -> tuple[Array, npt.NDArray[np.int64]]:
    """Pixels from 0 to 1, and labels, of one of the files. Raises DataError."""
    where = "give the folder cifar-10-batches-py of CIFAR-10's version for Python"
    try:
        with path.open("rb") as file:
            found = _Arrays(file, encoding="bytes").load()
        data, labels = np.asarray(found[b"data"]), np.asarray(found[b"labels"], np.int64)
    except FileNotFoundError:
        raise DataError(f"there is no {path}: {where}") from None
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}: {error}): {where}") from None
    whole = data.dtype == np.uint8 and data.ndim == 2 and data.shape == (len(labels), CIFAR_BYTES) and len(labels) > 0
    if not whole or labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{path} does not hold {CIFAR_BYTES} bytes a picture and labels below {CLASSES}: {where}")
    return (data.reshape(-1, COLOURS, SIDE, SIDE) / np.float32(255)).astype(np.float32), labels
