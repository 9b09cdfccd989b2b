"""Pictures for the training of cifar: those that are made, and CIFAR-10's files, whole and broken."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from inagg_testbed.bench.training_command import training
from inagg_testbed.training.images import CIFAR_FILES, CIFAR_TEST, CLASSES, DataError, load_images, shapes
from inagg_testbed.training.model import seeded
from inagg_testbed.training.resnet import SmallResNet


def write(folder: Path, content: Any = None, name: str | None = None) -> Path:
    """A folder as CIFAR-10's, with 20 pictures a file; or with another ``content`` in the file ``name``."""
    rng = np.random.default_rng(1)
    for each in (*CIFAR_FILES, CIFAR_TEST):
        whole = {b"data": rng.integers(0, 256, (20, 3072), np.uint8), b"labels": [i % CLASSES for i in range(20)]}
        (folder / each).write_bytes(pickle.dumps(content if each == name else whole, protocol=2))
    return folder


def test_cifar_files_are_read_and_normalized(tmp_path: Path) -> None:
    training_set, testing = load_images(write(tmp_path))
    assert training_set.pixels.shape == (100, 3, 32, 32)
    assert testing.labels.tolist() == [i % CLASSES for i in range(20)]
    assert training_set.pixels.dtype == torch.float32
    assert training_set.pixels.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert (training_set.pixels.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3


class Harmful:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Harmful(), "which no file of CIFAR-10 does"),
        ([1, 2], "cannot be read"),
        ({b"data": np.zeros((20, 3072), np.uint8)}, "cannot be read"),
        ({b"data": np.zeros((20, 100), np.uint8), b"labels": [0] * 20}, "does not hold 3072 bytes a picture"),
        ({b"data": np.zeros((20, 3072), np.uint8), b"labels": [10] * 20}, "labels below 10"),
    ],
)
def test_a_broken_file_is_told_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path, content, "data_batch_3")
    with pytest.raises(DataError, match=re.escape(words)):
        load_images(folder)
    assert not (tmp_path / "harmed").exists()


def test_a_folder_that_is_not_cifars_is_told_before_anything_starts(tmp_path: Path) -> None:
    done = CliRunner().invoke(training, ["--task", "cifar", "--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "give the folder cifar-10-batches-py" in " ".join(done.output.split())
    done = CliRunner().invoke(training, ["--task", "text", "--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "--data is not for the task text: it is for --task cifar alone" in done.output


def test_shapes_are_the_same_each_time_and_of_all_classes() -> None:
    (first, labels), (second, again) = (shapes(300, np.random.default_rng(4)) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(labels, again)
    assert np.bincount(labels, minlength=CLASSES).min() > 10


def test_neither_colour_nor_brightness_tell_a_shape() -> None:
    pixels, labels = shapes(2000, np.random.default_rng(4))
    means = np.stack([pixels[labels == label].mean(axis=(0, 2, 3)) for label in range(CLASSES)])
    assert np.abs(means - means.mean(axis=0)).max() < 0.05


def test_the_network_has_the_parameters_that_it_says_and_scores_ten_classes() -> None:
    model = seeded(SmallResNet, 1)
    assert "304,154" in str(type(model).__doc__)
    assert sum(p.numel() for p in model.parameters()) == 304_154
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
