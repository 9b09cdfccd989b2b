"""Every experiment would notice if the code that ships were wrong: each mutation, in a copy of all packages, puts at
least one figure of the experiment that claims the mutated thing out of tolerance. Slow: compiled code is compiled anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("protos", "switch", "host", "command", "testbed")
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old`` becomes ``new`` in a file, and then ``experiment`` must notice. Of ``compiled`` code what calls it is in
    other files, whose compiled code would be taken from the cache."""

    what: str
    file: str
    old: str
    new: str
    experiment: str
    compiled: bool = False


MUTATIONS = [
    Mutation(
        "the encoder rounds up 1 % too often, where there are no drafts",
        "host/inagg_host/codec/encoder_loops.py",
        "        code = U32(floor + U32(1)) if p > complement else floor\n",  # the first is that of float32
        "        code = U32(floor + U32(1)) if I64(p) > I64(complement) - I64(42949673) else floor\n",
        "natural-dithering",
        compiled=True,
    ),
    Mutation(
        "drafts round up 1 % too often",
        "host/inagg_host/codec/drafts.py",
        "    s0, s1 = b0 + (words_0(noise) >> U32(9)), b1 + (words_1(noise) >> U32(9))\n",
        "    s0 = b0 + (words_0(noise) >> U32(9)) + U32(83886)\n"
        "    s1 = b1 + (words_1(noise) >> U32(9)) + U32(83886)\n",
        "end-to-end",
        compiled=True,
    ),
    Mutation(
        "drafts round up 1 % too often, in the encoder",
        "host/inagg_host/codec/drafts.py",
        "    s0, s1 = b0 + (words_0(noise) >> U32(9)), b1 + (words_1(noise) >> U32(9))\n",
        "    s0 = b0 + (words_0(noise) >> U32(9)) + U32(83886)\n"
        "    s1 = b1 + (words_1(noise) >> U32(9)) + U32(83886)\n",
        "second-moment",
        compiled=True,
    ),
    Mutation(
        "the switch rounds up 1 % too often, sums as they come",
        "switch/inagg_switch/aggregation/kernels.py",
        "U32(magnitude + U32(noise & below))",
        "U32(magnitude + U32(U32(noise & below) + U32(below >> U32(6))))",
        "re-encoding",
        compiled=True,
    ),
    Mutation(
        "the switch rounds up 1 % too often, of few workers",
        "switch/inagg_switch/aggregation/deferred_sum.py",
        "    return bits + ((noise << by) >> 9)\n",
        "    return bits + ((noise << by) >> 9) + 0x00014000\n",
        "re-encoding",
        compiled=True,
    ),
    Mutation(
        "Natural rounds up 1 % too often",
        "host/inagg_host/compress/natural.py",
        "            noise = key.words(x.size) >> np.uint32(9)\n",
        "            noise = np.minimum((key.words(x.size) >> np.uint32(9)) + np.uint32(83886), np.uint32(0x7FFFFF))\n",
        "compressors",
    ),
    Mutation(
        "Natural rounds up 1 % too often, in float64",
        "host/inagg_host/compress/natural.py",
        "            noise |= key.words(x.size, 1).astype(np.uint64) >> np.uint64(12)\n",
        "            noise |= key.words(x.size, 1).astype(np.uint64) >> np.uint64(12)\n"
        "            noise = np.minimum(noise + np.uint64((1 << 52) // 100), np.uint64((1 << 52) - 1))\n",
        "compressors",
    ),
    Mutation(
        "standard dithering rounds up 1 % too often",
        "host/inagg_host/compress/dithering.py",
        "key.below(steps - floor)",
        "key.below(np.where(steps > floor, steps - floor + 0.01, 0))",
        "dithering-variance",
    ),
    Mutation(
        "natural dithering rounds up 1 % too often",
        "host/inagg_host/compress/dithering.py",
        "key.below(up)",
        "key.below(np.where(up > 0, up + 0.01, 0))",
        "dithering-variance",
    ),
    Mutation(
        "TernGrad is not zero 1 % too often",
        "host/inagg_host/compress/terngrad.py",
        "key.below(np.abs(x.astype(np.float64)) / scale)",
        "key.below(np.abs(x.astype(np.float64)) / scale + 0.01)",
        "terngrad",
    ),
    Mutation(
        "error feedback never updates its memory",
        "host/inagg_host/compress/feedback.py",
        "            np.subtract(entered, own, out=state[MEMORY])\n",
        "            pass\n",
        "mem-sgd",
    ),
    Mutation(
        "Mem-SGD never updates its memory",
        "host/inagg_host/compress/optim/memory.py",
        "        torch.sub(entering, _like(parameter, contributed), out=memory)\n",
        "",
        "mem-sgd",
    ),
    Mutation(
        "Mem-SGD never updates its memory, on sparse data",
        "host/inagg_host/compress/optim/memory.py",
        "        torch.sub(entering, _like(parameter, contributed), out=memory)\n",
        "",
        "mem-sgd-sparse",
    ),
    Mutation(
        "scaled rand-k does not scale",
        "host/inagg_host/compress/sparse.py",
        "        return d / count_of(self.k, d) if self.scaled and d else 1.0\n",
        "        return 1.0\n",
        "two-way-iterations",
    ),
    Mutation(
        "DIANA's shifts follow at 0.3 of their rate",
        "host/inagg_host/compress/optim/diana.py",
        "        self.shifts += self.alpha * sent\n",
        "        self.shifts += 0.3 * self.alpha * sent\n",
        "diana",
    ),
    Mutation(
        "the compressor diana's shifts follow at 0.3 of their rate",
        "host/inagg_host/compress/optim/shifted.py",
        "            alpha = own.dtype.type(self.alpha)\n",
        "            alpha = own.dtype.type(0.3 * self.alpha)\n",
        "smoothness",
    ),
    Mutation(
        "quantization with steps rounds up 1 % too often",
        "host/inagg_host/compress/optim/quantize.py",
        "        levels += rng.random(rows.shape) < y - levels\n",
        "        levels += rng.random(rows.shape) < y - levels + 0.01\n",
        "diana",
    ),
    Mutation(
        "Parallel-Mem-SGD forgets",
        "host/inagg_host/compress/optim/parallel.py",
        "        entering[indices] = 0.0\n",
        "        entering[:] = 0.0\n",
        "parallel-mem-sgd",
    ),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All packages, to be changed."""
    folder = tmp_path_factory.mktemp("mutations")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "results"))
    return folder


@contextmanager
def mutated(copy: Path, mutation: Mutation) -> Iterator[None]:
    """The mutation, while the block runs."""
    path = copy / mutation.file
    before, stat = path.read_text(), path.stat()
    assert mutation.old in before, f"nothing to mutate: {mutation.old!r} in {mutation.file}"
    path.write_text(before.replace(mutation.old, mutation.new, 1))
    try:
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # or the cache would take it for another


def figures(copy: Path, experiment: str, cache: Path) -> list[dict[str, Any]]:
    """Those of a run with the packages in ``copy``."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(copy / package) for package in PACKAGES),
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "inagg", "experiment", experiment, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def missed(found: list[dict[str, Any]]) -> list[str]:
    return [figure["figure"] for figure in found if not figure["within_tolerance"] and not figure["timed"]]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_there_is_something_to_mutate(mutation: Mutation) -> None:
    assert mutation.old in (ROOT / mutation.file).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_mutation_is_noticed(mutation: Mutation, copy: Path, tmp_path: Path, record_property: Any) -> None:
    cache = tmp_path if mutation.compiled else copy / "cache"
    with mutated(copy, mutation):
        noticed = missed(figures(copy, mutation.experiment, cache))
    record_property("figure", f"{mutation.experiment} has {len(noticed)} figures out of tolerance if {mutation.what}")
    assert noticed


@pytest.mark.slow
@pytest.mark.parametrize("experiment", sorted({mutation.experiment for mutation in MUTATIONS}))
def test_without_a_mutation_all_is_within_tolerance(experiment: str, copy: Path) -> None:
    assert missed(figures(copy, experiment, copy / "cache")) == []
