"""The working directory, which another process may have removed: then Python starts no processes, and PyTorch ends this
one while it loads."""

from __future__ import annotations

import os

import click


class NoWorkingFolder(click.ClickException):
    """The working directory was removed; the text says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "the working directory was removed: change to one that exists, and try again "
            '(if it was made anew, cd "$PWD" is enough)'
        )


def require_working_folder() -> None:
    """Raises `NoWorkingFolder`."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise NoWorkingFolder from None
