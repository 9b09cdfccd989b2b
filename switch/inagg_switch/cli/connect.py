"""Common part of all client commands: connections to a switch, and the errors of these."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from inagg_link.tls import TlsFault

from ..addresses import SettingsError, is_unix, split_address
from ..service.access import Access, read_own_secret
from ..service.control_client import ControlCallError, ControlClient
from ..service.security import SecurityError
from ..service.tls_trouble import INTERMEDIATE, OF_SERVER

TRY_S: Final = 3.0
"""Seconds to wait for the answer of a switch where there is another to ask."""
_OWN_PAIR: Final = "give --tls-cert and --tls-key (INAGG_CERTIFICATE and INAGG_KEY)"
ADVICE: Final[Mapping[TlsFault, str]] = {
    **OF_SERVER,
    TlsFault.SERVED: "give --tls-ca (INAGG_CA) of the authority that signed its certificate, or --tls if the system "
    "knows that",
    TlsFault.NOT_SERVED: "leave out --tls and --tls-ca (INAGG_CA), or give it --tls-cert and --tls-key",
    TlsFault.OWN_FILE: "see --tls-ca, --tls-cert and --tls-key (INAGG_CA, INAGG_CERTIFICATE and INAGG_KEY)",
    TlsFault.UNKNOWN_ISSUER: f"give --tls-ca (INAGG_CA) of the authority that signed it; {INTERMEDIATE} too",
    TlsFault.WRONG_NAME: "give --switch with a name in it, or --tls-name",
    TlsFault.UNTRUSTED: "give --tls-ca (INAGG_CA) of the authority that signed it",
    TlsFault.CERTIFICATE_WANTED: _OWN_PAIR,
    TlsFault.CERTIFICATE_REFUSED: f"{_OWN_PAIR} of another",
}
"""Advice on TLS that fails, in what these commands take."""


class AskError(click.ClickException):
    """The switch could not be asked; the text says why and what to do."""


@contextmanager
def connected(
    switch: str,
    secret_file: Path | None,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_name: str | None,
) -> Iterator[ControlClient]:
    """A client of ``switch``, as `commands.client_options` and the environment say; of several, with commas, as workers
    take them: of the first that answers. Whatever goes wrong inside becomes an `AskError`, but click.UsageError what
    cannot be sent or read."""
    silent: list[ControlCallError] = []
    try:
        access = Access(
            tls=tls or any((tls_ca, tls_cert, tls_key, tls_name)),
            ca=tls_ca,
            certificate=tls_cert,
            key=tls_key,
            server_name=tls_name,
            secret=read_own_secret(secret_file) if secret_file is not None else os.environ.get("INAGG_SECRET") or None,
        )
        with ControlClient(_first(_addresses(switch), access, silent), access) as client:
            yield client
    except SecurityError as error:
        raise click.UsageError(str(error)) from None
    except ControlCallError as error:
        before = "".join(f"{earlier}; " for earlier in silent) if error.silent else ""
        raise AskError(f"{before}{error}{_advice(error)}") from None


def _addresses(switch: str) -> list[str]:
    """One or several, with commas. Raises click.UsageError for what gRPC would take for another port, or for none."""
    addresses = [address.strip() for address in switch.split(",")]
    for address in addresses:
        try:
            sound = is_unix(address) or split_address(address)[1] > 0
        except SettingsError:
            sound = False
        if not sound:
            raise click.UsageError(f"switch {address!r}: give HOST:PORT, as `inagg switch` prints it")
    return addresses


def _first(addresses: list[str], access: Access, silent: list[ControlCallError]) -> str:
    """The first of several that answers; the last, which is not asked, if none before it does. ``silent`` gets why
    those before it did not."""
    *others, last = addresses
    for address in others:
        with ControlClient(address, access) as client:
            try:
                client.healthy(TRY_S)
            except ControlCallError as error:
                if not error.silent:
                    return address
                silent.append(error)
            else:
                return address
    return last


def _advice(error: ControlCallError) -> str:
    """Advice on TLS that fails, or where nobody has said which switch."""
    if error.trouble is not None:
        return f": {ADVICE[error.trouble.fault]}"
    context = click.get_current_context(silent=True)
    if context is None or not error.unreachable:
        return ""
    if context.get_parameter_source("switch") is not ParameterSource.DEFAULT:
        return ""
    return ". That is the default address: name another with --switch, or in INAGG_SWITCH as for workers"
