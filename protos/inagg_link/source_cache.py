"""Compiled code that was kept is used only with the sources that it is of. Numba looks at the file of a function alone;
but what the function calls, and the constants of other files, are compiled into it. So after an upgrade, or a pull, a
loop would go on with the old code of all that it calls.

A locator (`numba.core.caching`) says where a function's code is kept, and what its sources are. Ours, which Numba asks
first, says that they are the function's file and all that it imports of these packages.

Numba numbers the files of a function's compiled code, one for each signature, by an index that it writes before them.
So what was compiled at the same time for two signatures, or was interrupted after an upgrade, may be found under the
wrong one from then on. Ours are named by signature and sources, and are there before the index says so.

Numba reads an index whole before it compares the sources. Signatures in it may name classes that are gone since, and to
read those fails. Of ours none is read that is of other sources.

Numba looks only where it can write. So what was compiled into a package by one user, once for all, no other user would
use: of our functions we look there as well.

Numba gets ready to compile before it looks whether code was kept, which takes longer than to load ours: it imports some
60 modules and fills its tables. It does so anyway as soon as it compiles.

Numba fails where code cannot be kept: because of a full disk, after half a minute of compiling. Ours is used all the
same, and people hear of it.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import caching
from numba.core.runtime.nrt import rtsys

log = logging.getLogger("inagg")

PREFIX: Final = "inagg_"
"""Prefix of the names of these packages."""
_IMPORT: Final = re.compile(r"^\s*(?:from\s+(\S+)\s+import\s+(\([^)]*\)|[^\n(]*)|import\s+([\w.]+))", re.MULTILINE)
_numba: Any = caching  # without types
_runtime: Any = rtsys
_trees: dict[str, Path] = {}
"""The folder of a function's package where nothing can be kept, by the folder in which its code is kept instead."""
_not_kept: list[str] = []
"""Reason why code could not be kept, for the first function of this process with which it was so."""


class Locator:
    """A locator of a function as Numba's own, but for the sources."""

    def __init__(self, found: Any, file: str) -> None:
        self._found, self._file = found, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    def get_source_stamp(self) -> str:
        """A stamp that changes when one of the sources does."""
        return stamp(Path(self._file))

    def ensure_cache_path(self) -> None:
        """Make the folder, if that can be; if not, the `save` that Numba calls next says so."""
        with suppress(OSError):
            self._found.ensure_cache_path()

    @classmethod
    def from_function(cls, function: Any, file: str) -> Locator | None:
        """A locator of ``function``; None if that is none of ours. Where its code can be kept nowhere, it may be found
        all the same."""
        if not is_ours(Path(file)):
            return None
        others = (other for other in _numba.CacheImpl._locator_classes if other is not cls)
        found = next(filter(None, (other.from_function(function, file) for other in others)), None)
        if found is None:
            settings: Any = numba.config
            found = (_numba.UserProvidedCacheLocator if settings.CACHE_DIR else _numba.InTreeCacheLocator)(
                function, file
            )
        if (of_package := read_only_tree(Path(file))) is not None:
            _trees[str(found.get_cache_path())] = of_package
        return cls(found, file)


def tree(file: Path) -> Path:
    """Folder in which the code of a file of a package is kept, if that can be written."""
    return file.parent / "__pycache__"


def read_only_tree(file: Path) -> Path | None:
    """The folder `tree` if it cannot be written, for there may be code that was kept by who could; else None: he keeps
    what he compiles there, or wants to have it in NUMBA_CACHE_DIR alone."""
    return None if os.access(tree(file), os.W_OK) else tree(file)


def is_ours(file: Path) -> bool:
    """Whether it is a file of these packages, whose code is kept by `stamp`."""
    return _module(file).startswith(PREFIX)


@cache
def stamp(file: Path) -> str:
    """A hash of all `files`."""
    return hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files(file))).hexdigest()


def files(file: Path) -> list[Path]:
    """A file and all that it imports of these packages, and those import, and so on."""
    found = [file]
    for one in found:  # which grows meanwhile
        found += (f for f in _imports(one) if f not in found)
    return found


@cache
def _imports(file: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(_find_imports(file)))


def _find_imports(file: Path) -> Iterator[Path]:
    module = _module(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for origin, names, plain in _IMPORT.findall(file.read_text()):
        name = importlib.util.resolve_name(origin, package) if origin.startswith(".") else origin or plain
        if not name.startswith(PREFIX):
            continue
        for one in (name, *(f"{name}.{part}" for part in re.findall(r"\w+", names))):
            found = _file(one)
            if found is not None:
                yield found


def _module(file: Path) -> str:
    """The name of the module that a file is."""
    parts = [] if file.name == "__init__.py" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _file(module: str) -> Path | None:
    """The file of a module, which need not be imported yet; None if there is no such module."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    at = Path(spec.submodule_search_locations[0], *rest)
    return next((f for f in (at / "__init__.py", at.with_name(at.name + ".py")) if f.exists()), None)


def look_at_all_sources() -> None:
    """Have Numba ask `Locator` first, keep what that finds by `_save`, look into packages that are read-only, and load
    without getting ready to compile."""
    if Locator not in _numba.CacheImpl._locator_classes:
        _numba.CacheImpl._locator_classes.insert(0, Locator)
        numbas, load_numbas = _numba.IndexDataCacheFile.save, _numba.IndexDataCacheFile.load
        numbas_index, load_by_numba = _numba.IndexDataCacheFile._load_index, _numba.Cache.load_overload

        def save(kept: Any, key: Any, data: Any) -> None:
            if not isinstance(kept._source_stamp, str):
                numbas(kept, key, data)
                return
            try:
                _save(kept, key, data)
            except OSError:
                _say_not_kept(kept._cache_path)

        def load(kept: Any, key: Any) -> Any:
            found, of_package = load_numbas(kept, key), _trees.get(kept._cache_path)
            if found is None and of_package is not None and isinstance(kept._source_stamp, str):
                function = kept._index_name.removesuffix(".nbi")
                with suppress(OSError):  # nor can it be read: then Numba compiles
                    found = load_numbas(type(kept)(str(of_package), function, kept._source_stamp), key)
            return found

        def load_index(kept: Any) -> Any:
            return numbas_index(kept) if _is_of_its_sources(kept) else {}

        def load_overload(kept: Any, signature: Any, context: Any) -> Any:
            if not isinstance(kept._impl.locator, Locator):
                return load_by_numba(kept, signature, context)
            _runtime.initialize(context)  # which is all of it that code may need that is loaded
            with kept._guard_against_spurious_io_errors():
                return kept._load_overload(signature, context)

        _numba.IndexDataCacheFile.save, _numba.IndexDataCacheFile.load = save, load
        _numba.IndexDataCacheFile._load_index = load_index
        _numba.Cache.load_overload = load_overload


def _is_of_its_sources(kept: Any) -> bool:
    """Whether the index of a function may be read: it has the stamp of its sources, or is none of ours."""
    if not isinstance(kept._source_stamp, str):
        return True
    with suppress(OSError):  # there is none, or it cannot be read
        return kept._source_stamp.encode() in Path(kept._index_path).read_bytes()
    return False


def _save(kept: Any, key: Any, data: Any) -> None:
    """`IndexDataCacheFile.save` of a function whose stamp is of `Locator`; others have none that is a text."""
    function, index = kept._index_name.removesuffix(".nbi"), kept._load_index()
    if not index:  # of other sources, or none yet
        for old in Path(kept._cache_path).glob(f"{glob.escape(function)}.*.nbc"):
            old.unlink(missing_ok=True)
    name = f"{function}.{hashlib.sha256(repr((kept._source_stamp, key)).encode()).hexdigest()[:16]}.nbc"
    name = index.get(key, name)
    kept._save_data(name, data)
    kept._save_index({**kept._load_index(), key: name})


def _say_not_kept(folder: str) -> None:
    """Warn, once in a process."""
    if not _not_kept:
        _not_kept.append(
            f"{folder} is full, or cannot be written: compiled code is not kept; make room, or set NUMBA_CACHE_DIR to "
            "another folder"
        )
        log.warning("%s", _not_kept[0])


def why_not_kept() -> str | None:
    """Reason why code that this process has compiled is not kept, for people; None if all is."""
    return _not_kept[0] if _not_kept else None
