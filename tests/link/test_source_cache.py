"""Compiled code is that of today's sources, though another file was changed than the one that it is kept for."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numba.core import caching

from inagg_link import jit  # noqa: F401  # has code kept by `sources`
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


RAISER = """
import numba
import numpy as np
from inagg_link.jit import jit

@jit
def checked(x):
    if x < 0:
        raise ValueError("a negative one")
    return x

@numba.njit(cache=True)
def made(n):
    return np.ones(n)

@numba.njit
def both(n):
    found = {}
    for i in range(checked(n)):
        found[i] = made(n)
    return len(found) + found[0].sum()
"""
"""A loop of ours, one of anybody's, which needs more of Numba, and one that is compiled each time and calls them."""


def _ran(folder: Path, code: str) -> list[str]:
    """What a new process prints, in words."""
    (folder / "inagg_probe" / "raiser.py").write_text(RAISER)
    (folder / "anybodys.py").write_text(RAISER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    head = "import sys\nfrom inagg_probe.raiser import checked, both\nfrom anybodys import made\n"
    tail = "\nprint('numba.typed.typeddict' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", head + code + tail], env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout.split()


def test_kept_code_of_ours_is_loaded_without_what_only_a_compiler_needs(tmp_path: Path) -> None:
    _package(tmp_path)
    assert _ran(tmp_path, "print(checked(3))") == ["3", "True"]
    assert _ran(tmp_path, "print(checked(3))") == ["3", "False"]
    for _ in range(2):
        assert _ran(tmp_path, "print(made(3).sum())") == ["3.0", "True"]


def test_who_has_loaded_kept_code_can_compile_what_calls_it(tmp_path: Path) -> None:
    _package(tmp_path)
    code = """
print(checked(3), sum(checked.stats.cache_hits.values()))
try:
    checked(-1)
except ValueError as error:
    print(str(error).replace(" ", "-"))
print(both(4), checked(2.5))
"""
    for hits in ("0", "1"):
        assert _ran(tmp_path, code) == ["3", hits, "a-negative-one", "8.0", "2.5", "True"]


Kept: Any = caching.IndexDataCacheFile


def test_code_that_is_kept_for_two_signatures_at_once_is_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes see the same index, and write their code one after the other."""
    kept, write, late = Kept(str(tmp_path), "module.function-1.py3", "of sources"), Kept._save_data, list[Any]()
    with monkeypatch.context() as at_once:
        at_once.setattr(Kept, "_load_index", lambda _: {})
        at_once.setattr(Kept, "_save_data", lambda _, *what: late.append(what))
        kept.save("float32", "code for float32")
        kept.save("int64", "code for int64")
    for what in reversed(late):
        write(kept, *what)
    assert kept.load("int64") == "code for int64"
    assert kept.load("float32") in (None, "code for float32")


@pytest.mark.parametrize("step", ["_save_data", "_save_index"])
def test_code_whose_keeping_is_interrupted_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    Kept(str(tmp_path), "module.function-1.py3", "of old sources").save("int64", "old code")
    kept = Kept(str(tmp_path), "module.function-1.py3", "of sources")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Kept, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            kept.save("int64", "code")
    assert kept.load("int64") is None
    kept.save("int64", "code")
    assert kept.load("int64") == "code"
    assert len(list(tmp_path.iterdir())) == 2  # nothing is left of the old ones


def test_code_of_other_sources_is_not_read_though_its_signature_names_a_class_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("inagg_gone")
    vars(module)["Signature"] = type("Signature", (), {"__module__": module.__name__})
    with monkeypatch.context() as before:
        before.setitem(sys.modules, module.__name__, module)
        Kept(str(tmp_path), "module.function-1.py3", "before").save(vars(module)["Signature"](), "old code")
    kept = Kept(str(tmp_path), "module.function-1.py3", "after")
    assert kept.load("int64") is None
    kept.save("int64", "code")
    assert kept.load("int64") == "code"


@pytest.fixture
def not_kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing has been told yet of code that could not be kept."""
    told = list[str]()
    monkeypatch.setattr(sources, "_not_kept", told)
    return told


@pytest.mark.parametrize("step", ["_save_data", "_save_index"])
def test_code_that_a_full_disk_has_no_room_for_is_used_and_that_is_told_once(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, not_kept: list[str]
) -> None:
    kept = Kept(str(tmp_path), "module.function-1.py3", "of sources")

    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Kept, step, fill)
        assert sources.why_not_kept() is None
        kept.save("int64", "code")
        kept.save("float32", "code")
    (record,) = caplog.records
    assert record.getMessage() == sources.why_not_kept()
    assert record.getMessage().startswith(f"{tmp_path} is full, or cannot be written: compiled code is not kept; ")
    assert kept.load("int64") is None
    kept.save("int64", "code")
    assert kept.load("int64") == "code"


def test_an_index_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    assert Kept(str(tmp_path / "folder"), "module.function-1.py3", "of sources").load("int64") is None


def test_the_sources_of_the_loop_are_all_that_is_compiled_into_it() -> None:
    import inagg_host.io.serve as serve

    found = {file.name for file in sources.files(Path(serve.__file__))}
    assert {
        "serve.py",
        "send.py",
        "receive.py",
        "recovery.py",
        "state.py",
        "native.py",
        "port.py",
        "layout.py",
    } <= found
    assert not {"allreduce.py", "transport.py"} & found


def test_the_sources_of_the_switchs_loop_are_all_that_is_compiled_into_it() -> None:
    import inagg_switch.software.loop as loop

    found = {file.name for file in sources.files(Path(loop.__file__))}
    assert {
        "loop.py",
        "receive.py",
        "replies.py",
        "runs.py",
        "uplink.py",
        "validation.py",
        "kernels.py",
        "deferred_sum.py",
        "noise_word.py",
        "peers.py",
        "state.py",
    } <= found
    assert not {"data_plane.py", "shard.py"} & found
