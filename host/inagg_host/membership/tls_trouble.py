"""Why TLS to a switch fails, in words that name what a rank sets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from inagg_host.config import Config, ConfigError
from inagg_link.addresses import split_address
from inagg_link.tls import OwnFileError, TlsClient, TlsFault, check_files, find_tls_trouble, may_be_tls
from inagg_proto import GRPC_PREAMBLE

SEE: Final = "see INAGG_CA, INAGG_CERTIFICATE and INAGG_KEY"
_OTHER_PAIR: Final = "set INAGG_CERTIFICATE and INAGG_KEY"
ADVICE: Final[Mapping[TlsFault, str]] = {
    TlsFault.SERVED: "set INAGG_CA to the file of the authority that signed its certificate",
    TlsFault.NOT_SERVED: "leave INAGG_CA empty, or give it --tls-cert and --tls-key",
    TlsFault.OWN_FILE: SEE,
    TlsFault.EXPIRED: "the switch needs a new one, which it reads at SIGHUP; or, if it is the authority's that has "
    "expired, INAGG_CA too",
    TlsFault.NOT_YET_VALID: "compare the clocks of this machine and of the one that made it",
    TlsFault.UNKNOWN_ISSUER: "set INAGG_CA to the file of the authority that signed it; where that is an intermediate "
    "one, the switch's --tls-cert must hold the intermediate certificates too",
    TlsFault.WRONG_NAME: "set INAGG_SWITCH to a name in it, or give the switch a certificate for this one "
    "(subjectAltName)",
    TlsFault.UNTRUSTED: "set INAGG_CA to the file of the authority that signed it, and INAGG_SWITCH to a name in it",
    TlsFault.CERTIFICATE_WANTED: _OTHER_PAIR,
    TlsFault.CERTIFICATE_REFUSED: f"{_OTHER_PAIR} to another",
}


def client_of(config: Config) -> TlsClient | None:
    """How a rank calls; None: without TLS."""
    return None if config.ca is None else TlsClient(config.ca, config.certificate, config.key)


def check_own_files(config: Config) -> None:
    """Raises `ConfigError` if a file of keys is not what it should be: of that gRPC says only that it cannot connect.
    Files that were in order once are not looked at again: who joins again while somebody replaces them tries again."""
    if (client := client_of(config)) is not None:
        try:
            _check_once(client)
        except OwnFileError as error:
            raise ConfigError(f"{error}: {SEE}") from None


_check_once = cache(check_files)


def tls_trouble(config: Config, address: str, said: str) -> str | None:
    """A sentence on what is wrong between the switch at ``address`` and ``config``, where gRPC has ``said`` that it
    cannot connect; None if that is not to be seen. Connects once more, if ``said`` may come of TLS."""
    host, port = split_address(address)
    if not GRPC_PREAMBLE.match(said) or not may_be_tls(said, host):
        return None
    found = find_tls_trouble(host, port, client_of(config))
    return None if found is None else found.told(ADVICE)
