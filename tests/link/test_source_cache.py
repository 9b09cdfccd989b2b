"""Compiled code is that of today's sources, though another file was changed than the one that it is kept for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inagg_link import source_cache as sources

CALLER = """
from inagg_link.jit import jit
from .middle import called

@jit
def caller(x):
    return called(x)
"""
MIDDLE = """
from inagg_link.jit import {how}
from .numbers import NUMBER

@{how}
def called(x):
    return NUMBER + x
"""


def _package(folder: Path) -> Path:
    package = folder / "inagg_probe"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "caller.py").write_text(CALLER)
    return package


def _result(folder: Path) -> tuple[int, int]:
    """What a new process gets from ``caller(1)``, and how often it took that from the cache."""
    code = (
        "from inagg_probe.caller import caller; print(caller(1), *caller.stats.cache_hits.values(), 0)"  # 0 if no hit
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    result, hits, *_ = out.stdout.split()
    return int(result), int(hits)


def test_kept_code_is_used_until_something_that_it_calls_or_names_changes(tmp_path: Path) -> None:
    package = _package(tmp_path)
    (package / "numbers.py").write_text("NUMBER = 1\n")
    (package / "middle.py").write_text(MIDDLE.format(how="jit"))
    assert _result(tmp_path) == (2, 0)
    assert _result(tmp_path) == (2, 1)
    (package / "numbers.py").write_text("NUMBER = 5\n")
    assert _result(tmp_path) == (6, 0)
    (package / "middle.py").write_text(MIDDLE.format(how="inline"))
    assert _result(tmp_path) == (6, 0)
    (package / "unrelated.py").touch()
    assert _result(tmp_path) == (6, 1)


def test_the_sources_of_the_loop_are_all_that_is_compiled_into_it() -> None:
    import inagg_host.io.loop as loop

    found = {file.name for file in sources.files(Path(loop.__file__))}
    assert {"loop.py", "send.py", "receive.py", "recovery.py", "state.py", "native.py", "port.py", "layout.py"} <= found
    assert not {"allreduce.py", "thread.py"} & found
