"""Options that name what a command will write: whether it can is asked before any work begins, and told."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import click


def why_not_written(folder: Path) -> str | None:
    """Reason why no file can be made in ``folder``; None if one can. Permissions do not tell: a file system may be
    read-only, or full, or none of that kind (/proc), and root has them all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"cannot write into {folder}: {error.strerror}"


def write_whole(path: Path, text: str) -> None:
    """Write ``text``, in UTF-8, so that a reader sees all of it, or what was there before. Raises OSError."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # A new file: in a folder that others may write to, a link of theirs would have us write to what it points to.
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class NewFile(click.Path):
    """A file that can be written, in a folder that is there: one that is not is more likely a slip of who types than a
    wish for a new one.

    ``replaces``: what is there is not written to, but removed for another in its place. So it must be a file, and no
    device: root could remove /dev/null.
    """

    def __init__(self, *, replaces: bool = False) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path, resolve_path=replaces)
        self._replaces = replaces

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fsdecode(value):  # of a variable that is not set, which is "." to pathlib
            self.fail("no file is named", param, ctx)
        path: Any = super().convert(_home(value), param, ctx)
        if self._replaces and path.exists() and not path.is_file():
            self.fail(f"{value}: a file would take the place of what is there", param, ctx)
        if path.exists() and not self._replaces:  # such as /dev/stdout, in whose folder there is nothing to make
            return path
        folder = path.absolute().parent
        if not folder.is_dir():
            self.fail(f"{value}: there is no folder {folder} to write into", param, ctx)
        why = why_not_written(folder)
        if why is not None:
            self.fail(f"{value}: {why}", param, ctx)
        return path


class NewFolder(click.Path):
    """A folder to write files into, which is there or can be made."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fsdecode(value):  # of a variable that is not set; "." says where one is
            self.fail("no folder is named: give . for this one", param, ctx)
        path: Any = super().convert(_home(value), param, ctx)
        why = why_not_written(_there(path.absolute()))
        if why is not None:
            self.fail(f"{value}: {why}", param, ctx)
        return path


def _there(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(above for above in (folder, *folder.parents) if os.path.lexists(above))


def _home(value: Any) -> str:
    """A path with ``~`` expanded as by shells, which leave it alone in ``--report=~/page.html``."""
    return os.path.expanduser(os.fsdecode(value))
