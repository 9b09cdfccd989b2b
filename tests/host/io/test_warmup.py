"""All is compiled when a rank joins: no operation has to wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

SCRIPT = """
from contextlib import ExitStack
import numpy as np
from tests.host.io.rig import World, values
from inagg_host import warmup
from inagg_switch.software import shard
from inagg_link.first_start import compile_all, telling
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

compile_all([*shard.units(), *warmup.units(job_format("{fmt}"))])
compiled = []
with ExitStack() as stack, telling(compiled.append):
    world = World(stack, fmt="{fmt}", shards=2)
    for float_type in FloatType:
        for rank in world.ranks:
            mine, other = values(0, 9999, float_type), values(1, 9999, float_type)
            rank.submit(mine, float_type=float_type)
            rank.submit(other, float_type=float_type, contributed=np.zeros_like(other))
    world.wait(8)
print(len(compiled))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["nat8", "dith8", "fix32"])
def test_nothing_is_compiled_in_an_operation(tmp_path: Path, fmt: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(fmt=fmt)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    assert ran.stdout == "0\n"
