"""Folders for as long as a command runs.

A command that is killed (SIGKILL) cannot remove its own. But the kernel lets go of what it had locked; so whoever makes
the next folder finds those that nobody holds, and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from inagg_link.signals import Deferred

PREFIX: Final = "inagg-"
LOCK: Final = "lock"
"""A file in each, which its owner has locked (flock(2)) as long as it lives."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A new folder, whose name has ``what`` it is for; a context manager, or until `cleanup`."""

    def __init__(self, what: str) -> None:
        """Raises `click.ClickException` where no folder can be written to."""
        try:
            remove_left_over()
        except FileNotFoundError as error:  # of `tempfile.gettempdir`
            raise click.ClickException(
                f"{error.strerror}: set TMPDIR to a folder for temporary files that you may write to"
            ) from error
        while True:
            with Deferred():  # between making it and noting that it is to be removed
                super().__init__(prefix=f"{PREFIX}{what}-")
            path = Path(self.name, LOCK)
            self._held = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._held, fcntl.LOCK_EX)
            if path.exists():  # else somebody took it for left over before it was locked
                return
            self.cleanup()

    def cleanup(self) -> None:
        """Remove it. No error if it is gone."""
        with Deferred():
            super().cleanup()
            if self._held >= 0:
                os.close(self._held)
                self._held = -1


def remove_left_over() -> None:
    """Remove the folders of this user that nobody holds any more."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # its owner removes it, or somebody does what we do
            if lock.parent.lstat().st_uid != os.geteuid():
                continue
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
