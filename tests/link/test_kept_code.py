"""Code that one user has compiled into a package is used by others, who cannot write there."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
FUNCTION = """
from inagg_link.jit import jit

@jit
def doubled(x):
    return 2 * x
"""
READ_ONLY = f"""
import os, tempfile
from pathlib import Path

real_access, real_file = os.access, tempfile.TemporaryFile

def is_shared(path):
    return any(Path(path).is_relative_to(root) for root in (os.environ["SHARED"], {str(REPOSITORY)!r}))

def access(path, mode, **how):
    return not (mode & os.W_OK and is_shared(path)) and real_access(path, mode, **how)

def file(*how, dir=None, **more):
    if dir is not None and is_shared(dir):
        raise PermissionError
    return real_file(*how, dir=dir, **more)

os.access, tempfile.TemporaryFile = access, file
"""
"""What others find in folders that they cannot write to, for tests that root runs, too."""
USE = """
from inagg_probe.doubled import doubled
from inagg_link.kept_code import usable
assert doubled(4) == 8
hits = sum(doubled.stats.cache_hits.values())
print((hits, {str(folder): count for folder, count in usable().items()}))
"""


class Used(NamedTuple):
    hits: int
    """How often compiled code was found."""
    usable: dict[str, int]
    stderr: str


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with a package that has one function."""
    package = tmp_path / "shared" / "inagg_probe"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "doubled.py").write_text(FUNCTION)
    return package.parent


def use(shared: Path, home: Path, before: str = "", **variables: str) -> Used:
    """The function, by a new process of somebody who has that home."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    environment = inherited | {
        "PYTHONPATH": os.pathsep.join([str(shared), *sys.path]), "HOME": str(home), "SHARED": str(shared),
        "TMPDIR": str(shared.parent),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", before + USE], env=environment | variables, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    hits, usable = ast.literal_eval(ran.stdout)
    return Used(hits, usable, ran.stderr)


@pytest.mark.parametrize("home", ["a home", "no home", "a cache of his own"])
def test_what_was_compiled_into_a_package_is_used_by_who_cannot_write_there(
    shared: Path, tmp_path: Path, home: str
) -> None:
    """Wherever he would keep what he compiles."""
    assert use(shared, tmp_path).hits == 0
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")} if home == "a cache of his own" else {}
    user = tmp_path / "user" if home == "a home" else Path("/dev/null")
    found = use(shared, user, READ_ONLY, **variables)
    assert found.hits == 1
    assert not [*tmp_path.glob("user/**/*.nbi"), *tmp_path.glob("*cache*/**/*.nbi")]


def test_who_needs_no_place_for_what_he_compiles_is_told_of_none(shared: Path, tmp_path: Path) -> None:
    """He has no home and may not write to the package, which was warmed up."""
    for package in ("inagg_wire", "inagg_link"):
        cold = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "protos" / package, shared / package, ignore=cold)
    nobody = Path("/dev/null")
    loop = "import numpy; from inagg_link.native import mixed; mixed(numpy.uint64(7))\n"
    assert "set NUMBA_CACHE_DIR" in use(shared, nobody, READ_ONLY).stderr
    use(shared, tmp_path, loop)
    assert not use(shared, nobody, READ_ONLY + loop).stderr


def test_who_cannot_write_to_a_package_that_has_changed_compiles_for_himself(shared: Path, tmp_path: Path) -> None:
    use(shared, tmp_path)
    (shared / "inagg_probe" / "doubled.py").write_text(FUNCTION + "# changed\n")
    user = tmp_path / "user"
    first, second = (use(shared, user, READ_ONLY) for _ in range(2))
    assert (first.hits, second.hits) == (0, 1)
    assert first.usable[str(user / ".cache" / "numba")] == 1


def test_a_package_whose_code_is_private_is_no_hindrance(shared: Path, tmp_path: Path) -> None:
    """Its owner may have a strict umask."""
    use(shared, tmp_path)
    private = f"""
import builtins
real_open = open

def open_file(path, *how, **more):
    if str(path).startswith({str(shared)!r}) and str(path).endswith((".nbi", ".nbc")):
        raise PermissionError(13, "Permission denied", str(path))
    return real_open(path, *how, **more)

builtins.open = open_file
"""
    assert use(shared, tmp_path / "user", READ_ONLY + private).hits == 0


def test_code_counts_only_if_it_would_be_used(shared: Path, tmp_path: Path) -> None:
    """Not that of other sources, nor that for other processors."""
    cache = tmp_path / "cache"
    variables = {"NUMBA_CACHE_DIR": str(cache)}
    assert use(shared, tmp_path, **variables).usable == {str(cache): 1}
    count = "from inagg_link.kept_code import usable; print(list(usable().values()))"
    before = f"import sys; exec({count!r}); sys.stdout = sys.stderr;"
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(shared), *sys.path])}

    def counted(**more: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", before], env=environment | more, capture_output=True, text=True, timeout=60
        )
        return ran.stdout

    assert counted() == "[1]\n"
    assert counted(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == "[]\n"
    (shared / "inagg_probe" / "doubled.py").write_text(FUNCTION + "# changed\n")
    assert counted() == "[]\n"
