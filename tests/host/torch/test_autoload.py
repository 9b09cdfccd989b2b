"""The backend is there for whoever imports torch, and `import torch` cannot fail for it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

NOTHING_HEAVY = """
import sys, torch.distributed as dist
assert "inagg" in dist.Backend.backend_list
heavy = [name for name in ("numba", "grpc", "inagg_host.torch", "inagg_wire") if name in sys.modules]
assert not heavy, heavy
"""

A_GROUP = """
import torch, torch.distributed as dist
dist.init_process_group("inagg", store=dist.HashStore(), rank=0, world_size=1)
ones = torch.ones(10)
dist.all_reduce(ones)
print(dist.get_backend(), type(dist.group.WORLD).__name__, float(ones[0]))
dist.destroy_process_group()
"""

BROKEN = """
import torch.distributed as dist
def fails(*arguments, **options): raise RuntimeError("not this one")
dist.Backend.register_backend = fails
from inagg_host.autoload import register
register()
print("goes on")
"""


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


def test_torch_finds_the_backend() -> None:
    (entry,) = [entry for entry in entry_points(group="torch.backends") if entry.name == "inagg"]
    assert entry.value == "inagg_host.autoload:register"


def test_to_import_torch_loads_nothing_of_ours_that_takes_time() -> None:
    done = python(NOTHING_HEAVY)
    assert done.returncode == 0, done.stderr


def test_a_script_that_imports_nothing_of_ours_has_the_backend() -> None:
    done = python(A_GROUP, INAGG_SWITCH="127.0.0.1:1")
    assert done.stdout.splitlines()[-1].split() == ["inagg", "InaggGroup", "1.0"], done.stderr


def test_to_register_twice_says_nothing() -> None:
    done = python("from inagg_host.autoload import register; register(); register(); print('goes on')")
    assert (done.stdout, done.stderr) == ("goes on\n", "")


def test_what_goes_wrong_is_said_and_does_not_break_the_import() -> None:
    done = python(BROKEN)
    assert done.stdout == "goes on\n", done.stderr
    assert 'the backend "inagg" is not there: RuntimeError: not this one' in done.stderr


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import inagg_host.torch.{module}
"""


@pytest.mark.parametrize("module", ["hook", "elastic"])
def test_without_torch_the_error_says_how_to_get_it(module: str) -> None:
    result = python(WITHOUT_TORCH.format(module=module))
    assert result.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: inagg_host.torch needs PyTorch, which is not installed. "
        "Install: pip install '.[torch]' (in inagg's clone)"
    )
