"""The first start on a machine, which compiles: where the result is kept (for which sources, see `source_cache`), who
does what of it, and that people and parent processes hear of it. It needs Numba, as `jit`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numba
from numba.core import event

from .kept_code import can_write, package_is_warm, user_cache
from .progress import Progress, Tell
from .source_cache import look_at_all_sources, tree

log = logging.getLogger("inagg")
_register: Any = event.register  # without types
_unregister: Any = event.unregister

TEMPORARY: Final = "inagg-cache-"
"""Prefix of the names of temporary folders for compiled code."""
NO_TEMPORARY: Final = (
    "no folder for temporary files can be written: mount something on /tmp, or set TMPDIR or NUMBA_CACHE_DIR"
)
LOOK_S: Final = 0.05
"""Seconds between looks whether another process has compiled what this one needs."""


# --- where ---


def find_cache() -> None:
    """If NUMBA_CACHE_DIR cannot be written (where it is not set, neither the package's folders nor the user's cache),
    have Numba use a temporary folder, so that what is compiled is kept for a while. Called when this module is
    imported, which all do that compile."""
    settings: Any = numba.config
    if asked := settings.CACHE_DIR:
        folders, why = [Path(asked)], f"NUMBA_CACHE_DIR, {asked}, cannot"
    else:
        folders = [tree(Path(__file__)), user_cache()]
        why = f"neither the installed package nor {user_cache()} can"
    if any(map(can_write, folders)):
        return
    try:
        folder = _temporary()
    except OSError:  # then Numba loads what can be read, and `source_cache` says it if it has to compile
        if asked or not package_is_warm():
            log.warning("compiled code is not kept, since %s be written either: %s", why, NO_TEMPORARY)
        return
    if asked:
        _begin_with(folder, Path(asked))
    settings.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if not asked and package_is_warm():
        return  # what was compiled there is used, so that there is nothing to keep
    log.warning(
        "what is compiled for this machine is kept in %s, since %s be written: set NUMBA_CACHE_DIR to a folder that "
        "lasts, or run `inagg warmup` as a user who may write to the installed package",
        folder,
        why,
    )


def _begin_with(folder: Path, compiled: Path) -> None:
    """Fill an empty ``folder`` with what is in ``compiled``, which can only be read: as in a container whose root is
    read-only, and whose image was warmed up."""
    with suppress(OSError):  # there is none, or another process has been quicker: then Numba compiles, or finds that
        if any(folder.iterdir()):  # of an earlier start
            return
        copy = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            shutil.copytree(compiled, copy, dirs_exist_ok=True)
            copy.chmod(0o700)  # not that of the original
            copy.rename(folder)  # at once, and only in the place of an empty one (rename(2))
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def _temporary() -> Path:
    """A folder that nobody else can write to, for what is in it is run; the same next time, if that can be. Raises
    OSError."""
    folder = Path(tempfile.gettempdir()) / f"{TEMPORARY}{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not folder.is_symlink() and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    return Path(tempfile.mkdtemp(prefix=TEMPORARY))


def is_temporary(folder: Path) -> bool:
    """Whether that is what `find_cache` chose for want of a better one, here or in a parent process."""
    with suppress(OSError):  # there are no temporary folders
        return folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(TEMPORARY)
    return False


# --- who ---


class Unit(NamedTuple):
    """Something to compile, or to load from the cache."""

    source: str
    """A file that is there, whose lock says that somebody compiles or loads it: so nothing is left behind."""
    compile: Callable[[], None]


def compile_all(units: Sequence[Unit], turn: int = 0) -> None:
    """Compile ``units``. Processes that start together and need the same ones share the work, each beginning with its
    ``turn``, and wait for what others compile: with few processors that is several times as fast. Where files cannot be
    locked (some network file systems), each compiles all."""
    left = [units[(i + turn) % len(units)] for i in range(len(units))]
    while left:
        for unit in left:
            if _compile(unit):
                left.remove(unit)
                break
        else:
            time.sleep(LOOK_S)
            _say()


def _compile(unit: Unit) -> bool:
    """Whether that could be, since nobody else is compiling or loading it."""
    with Path(unit.source).open("rb") as lock:
        if not _take(lock):
            return False
        unit.compile()
    return True


def _take(lock: IO[bytes]) -> bool:
    """Whether no other process has locked the file; then it is locked until it is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # such a file cannot be locked
    return True


# --- that people hear of it ---


class _Counter(event.Listener):
    """Counts functions that are compiled, not those that come from the cache."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, _event: Any) -> None:
        self.count += 1
        _say()

    def on_end(self, _event: Any) -> None:
        pass


_counter = _Counter()
_tellers: list[Tell] = []
_lock = threading.RLock()
"""Lock of the tellers, also while they are called: nobody is told anything once it is over for him. Ranks may be
threads."""


def _say() -> None:
    with _lock:
        for tell in _tellers:
            tell(_counter.count)


@contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Call ``tell`` whenever this process begins to compile a function, and while it waits for another's, on the thread
    that does."""
    with _lock:
        if not _tellers:
            _register("numba:compile", _counter)
        _tellers.append(tell)
    try:
        yield
    finally:
        with _lock:
            _tellers.remove(tell)
            if not _tellers:
                _unregister("numba:compile", _counter)


@contextmanager
def saying(say: Callable[[str], None], what: str) -> Iterator[None]:
    """`Progress` meanwhile. Of processes that start together, such as the ranks of a machine, one at a time speaks: so
    that people read it once."""
    progress, speaks = Progress(say, what, _counter.count), False
    with Path(__file__).open("rb") as voice:  # a file that is there, as that of a `Unit`

        def tell(count: int) -> None:
            nonlocal speaks
            speaks = speaks or _take(voice)
            if speaks:
                progress(count)

        with telling(tell):
            yield


find_cache()
look_at_all_sources()
