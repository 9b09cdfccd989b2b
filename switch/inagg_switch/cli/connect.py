"""What all client commands share: how to reach a switch, and how to say that it went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..service.access import Access
from ..service.control_client import ControlCallError, ControlClient
from ..service.security import SecurityError, read_secrets

EXIT_UNREACHABLE = 2
"""Exit status if the switch cannot be asked: wrong usage, not reachable, or it refuses."""


class AskError(click.ClickException):
    """The switch could not be asked; the text says why and what to do."""

    exit_code = EXIT_UNREACHABLE


@contextmanager
def connected(
    switch: str,
    secret: str | None = None,
    secret_file: Path | None = None,
    tls: bool = False,
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_name: str | None = None,
) -> Iterator[ControlClient]:
    """A client of ``switch``. Whatever goes wrong inside becomes an `AskError`."""
    try:
        access = Access(
            tls=tls or any((tls_ca, tls_cert, tls_key, tls_name)),
            ca=tls_ca,
            certificate=tls_cert,
            key=tls_key,
            server_name=tls_name,
            secret=read_secret(secret_file) if secret_file is not None else secret,
        )
        with ControlClient(switch, access) as client:
            yield client
    except (ControlCallError, SecurityError) as error:
        raise AskError(str(error)) from None


def read_secret(path: Path) -> str:
    """The secret in a file, with or without a name before it. Raises `SecurityError`."""
    found = list(read_secrets(path).values())
    if len(found) > 1:
        raise SecurityError(f"{path} has {len(found)} secrets: give a file with yours alone")
    return found[0]
