"""Processors with longer vectors compute the same bits as others: the ranks of a job need not be alike."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from numba.core.registry import cpu_target
from tests.project.every_width import digests

from inagg_link.simd import LANES


def without_avx512() -> str:
    """What NUMBA_CPU_FEATURES is to be for a processor as this one, but without AVX-512."""
    target: Any = cpu_target
    features: list[str] = target.target_context.codegen().magic_tuple()[2].split(",")
    return ",".join(f"-{f[1:]}" if f[1:].startswith(("avx512", "avx10")) else f for f in features)


@pytest.mark.skipif(LANES == 8, reason="this processor has no longer vectors (AVX-512) to compare with")
def test_with_and_without_longer_vectors_the_bits_are_the_same() -> None:
    environment = os.environ | {"NUMBA_CPU_FEATURES": without_avx512(), "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = [sys.executable, "-m", "tests.project.every_width"]
    done = subprocess.run(asked, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == ["vectors of 8", *digests()]
