"""Folders of compiled code of these packages, and how much of it a process would use. It needs Numba, as `jit`."""

from __future__ import annotations

import glob
import os
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import caching
from numba.core.registry import cpu_target
from numba.misc.appdirs import AppDirs

from .source_cache import PREFIX, is_ours, read_only_tree, stamp, tree

_numba: Any = caching  # without types
_processor: Any = cpu_target
_dirs: Any = AppDirs


def place() -> Path:
    """Folder below which this process keeps what it compiles: the one that NUMBA_CACHE_DIR names, the installed
    package, or the user's cache."""
    settings: Any = numba.config
    if settings.CACHE_DIR:
        return Path(settings.CACHE_DIR)
    return package() if can_write(tree(Path(__file__))) else user_cache()


def package() -> Path:
    """The folder that these packages are in: all of them, where each has one of its own."""
    return Path(os.path.commonpath([root.parent for root in _roots()]))


def user_cache() -> Path:
    """Folder in which Numba keeps code of packages that the user may not write to."""
    return Path(_dirs(appname="numba", appauthor=False).user_cache_dir)


def describe(folder: Path) -> str:
    """Words for a folder of code, for people."""
    return f"the installed package, {folder}" if folder == package() else str(folder)


def can_write(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def usable() -> dict[Path, int]:
    """Number of functions that this process would take from each folder. Code that is of other sources, for another
    processor, or of another Python or Numba does not count, nor does what no process with these variables reads."""
    found: dict[Path, int] = {}
    for _, of_place in _usable():
        found[of_place] = found.get(of_place, 0) + 1
    return found


def package_is_warm() -> bool:
    """Whether what all programs here need was compiled into the installed package, and could be used."""
    folder = Path(__file__).parent
    return any(_fits(index, folder) for index in _indexes(folder / "__pycache__"))


def _usable() -> Iterator[tuple[str, Path]]:
    """The functions, each with the first place that has it."""
    kept, whole = place(), package()
    for folder in _source_folders():
        source = folder / "__init__.py"  # any file of the folder has its code in the same one
        own = tree(source)
        if kept != whole:
            own = kept / _numba.InTreeCacheLocator.get_suitable_cache_subpath(str(source))
        of_package = read_only_tree(source)
        names = set[str]()
        for compiled, of_place in ((own, kept), (of_package, whole)):
            for index in _indexes(compiled) if compiled is not None else ():
                if index.name not in names and _fits(index, folder):
                    names.add(index.name)
                    yield index.name, of_place


def _roots() -> set[Path]:
    """The folders of these packages."""
    found = [module for module in pkgutil.iter_modules() if module.ispkg and module.name.startswith(PREFIX)]
    folders = [getattr(module.module_finder, "path", None) for module in found]
    others = {Path(folder, module.name) for folder, module in zip(folders, found, strict=True) if folder is not None}
    return {Path(__file__).parent, *others}


def _source_folders() -> list[Path]:
    return sorted({file.parent for root in _roots() for file in root.rglob("*.py")})


def _indexes(compiled: Path) -> list[Path]:
    """Index files in a folder of compiled code that this Python reads: each is of one function
    (`numba.core.caching`)."""
    version = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    return sorted(compiled.glob(f"*.{version}.nbi"))


def _fits(index: Path, folder: Path) -> bool:
    """Whether code of that index would be used for the sources in ``folder``, by this Numba on this processor. It is
    looked for what Numba compares, without unpickling, which would import whatever the signatures speak of."""
    source = folder / f"{index.name.partition('.')[0]}.py"
    if not (source.exists() and is_ours(source)):
        return False
    try:
        data = index.read_bytes()
    except OSError:  # another user's, and private
        return False
    wanted = (numba.__version__, stamp(source), *_processor.target_context.codegen().magic_tuple())
    code = index.parent.glob(f"{glob.escape(index.stem)}.*.nbc")
    return all(text.encode() in data for text in wanted) and any(os.access(file, os.R_OK) for file in code)
