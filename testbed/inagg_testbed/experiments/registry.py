"""All experiments by name. The modules are imported when one is wanted: some need PyTorch."""

from __future__ import annotations

import importlib

from .model import Experiment

MODULES = {
    "second-moment": "second_moment",
    "re-encoding": "re_encoding",
    "natural-dithering": "natural_dithering",
    "dithering-variance": "dithering_variance",
    "mem-sgd": "mem_sgd",
    "mem-sgd-sparse": "mem_sgd_sparse",
    "parallel-mem-sgd": "parallel_mem_sgd",
    "terngrad": "terngrad",
    "diana": "diana",
    "block-quantization": "block_quantization",
    "end-to-end": "end_to_end",
    "noise": "noise",
    "two-way-iterations": "two_way_iterations",
    "smoothness": "smoothness",
    "smoothness-workers": "smoothness_workers",
    "compressors": "compressors",
    "digits": "digits",
}
"""Name -> module of this package whose ``EXPERIMENT`` it is, in the order of `inagg experiment all`."""


def load(name: str) -> Experiment:
    """The experiment called ``name``, one of `MODULES`."""
    experiment = importlib.import_module(f".{MODULES[name]}", __package__).EXPERIMENT
    assert isinstance(experiment, Experiment)
    assert experiment.name == name
    return experiment
