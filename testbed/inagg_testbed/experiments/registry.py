"""All experiments by name. The modules are imported when one is wanted: some need PyTorch."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

from .model import Experiment


class Listed(NamedTuple):
    """Facts about an experiment that are known before it is imported."""

    module: str
    """Module of this package whose ``EXPERIMENT`` it is."""
    line: str
    """A few words on it, for the help."""
    takes: tuple[str, ...] = ()
    """Fields of a `Run` that it heeds, of ``workers``, ``seeds``, ``dim`` and ``data``."""
    one_count: bool = False
    """It has one number of workers, and compares none."""


EXPERIMENTS: Final = {
    "second-moment": Listed("second_moment", "natural compression's second moment, exactly"),
    "re-encoding": Listed("re_encoding", "the switch's re-encoding: natural compression, exactly"),
    "natural-dithering": Listed("natural_dithering", "natural dithering: C_nat after standard, exactly"),
    "dithering-variance": Listed("dithering_variance", "variance of standard and natural dithering"),
    "mem-sgd": Listed("mem_sgd", "SGD with memory against SGD"),
    "mem-sgd-sparse": Listed(
        "mem_sgd_sparse", "on sparse data; rate against d/k; gamma and shift", ("seeds", "dim", "data")
    ),
    "parallel-mem-sgd": Listed("parallel_mem_sgd", "lock-free processes with memory", ("workers", "dim", "data")),
    "terngrad": Listed("terngrad", "TernGrad through the switch against float32", ("workers", "seeds")),
    "diana": Listed("diana", "DIANA+ with varying steps against DIANA", ("workers", "dim")),
    "block-quantization": Listed(
        "block_quantization", "where block quantization wins, and where not", ("workers", "dim")
    ),
    "end-to-end": Listed(
        "end_to_end", "two-way natural compression through the switch", ("workers", "seeds"), one_count=True
    ),
    "noise": Listed("noise", "the noise terms alpha and beta, and measured noise", ("workers",)),
    "two-way-iterations": Listed(
        "two_way_iterations", "iterations against (w_W + 1)(w_M + 1)", ("workers", "dim"), one_count=True
    ),
    "smoothness": Listed("smoothness", "smoothness-aware methods on real data", ("workers", "data"), one_count=True),
    "smoothness-workers": Listed(
        "smoothness_workers", "the same by the number of workers, and by the clock", ("workers", "data")
    ),
    "compressors": Listed("compressors", "each compressor's error and bits, from real packets", ("dim",)),
    "digits": Listed("digits", "all compressors at equal bytes", ("workers",), one_count=True),
}
"""In the order of `inagg experiment all`."""


def load(name: str) -> Experiment:
    """The experiment called ``name``, one of `EXPERIMENTS`."""
    experiment = importlib.import_module(f".{EXPERIMENTS[name].module}", __package__).EXPERIMENT
    assert isinstance(experiment, Experiment)
    assert experiment.name == name
    return experiment
