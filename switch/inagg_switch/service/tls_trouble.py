"""Reasons why TLS to another switch fails, and sentences on them for a switch that has a parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inagg_link.tls import TlsFault, TlsTrouble, find_tls_trouble, may_be_tls

from ..addresses import SettingsError, split_address
from .access import Access, OpenedAccess

OF_SERVER: Final[Mapping[TlsFault, str]] = {
    TlsFault.EXPIRED: "the switch needs a new one, which it reads at SIGHUP, or else the authority",
    TlsFault.NOT_YET_VALID: "compare the clocks of this machine and of the one that made it",
}
"""Advice on a certificate of the server's, whoever asks."""
INTERMEDIATE: Final = (
    "where that is an intermediate one, the switch's --tls-cert must hold the intermediate certificates"
)
"""Advice on a certificate whose issuer is unknown."""

ADVICE: Final[Mapping[TlsFault, str]] = {
    **OF_SERVER,
    TlsFault.SERVED: "give --parent-ca",
    TlsFault.NOT_SERVED: "leave out --parent-ca, or give it --tls-cert and --tls-key",
    TlsFault.OWN_FILE: "see --parent-ca, --tls-cert and --tls-key",
    TlsFault.UNKNOWN_ISSUER: f"give --parent-ca of the authority that signed it; {INTERMEDIATE} too",
    TlsFault.WRONG_NAME: "give --parent with a name in it, or the parent a certificate for this one (subjectAltName)",
    TlsFault.UNTRUSTED: "give --parent-ca of the authority that signed it, and the host by a name in it",
    TlsFault.CERTIFICATE_WANTED: "give --tls-cert and --tls-key",
    TlsFault.CERTIFICATE_REFUSED: "give --tls-cert and --tls-key of another",
}


def find(address: str, access: Access | OpenedAccess, said: str | None = None) -> TlsTrouble | None:
    """The trouble between ``address`` (host:port) and this ``access``; None if that is not to be seen. Connects once
    more, for the time of a handshake, unless what gRPC has ``said`` does not come of TLS. Raises nothing.

    Of a channel that was made earlier, give the `OpenedAccess`: the files may hold something else by now.
    """
    try:
        host, port = split_address(address)
    except SettingsError:
        return None
    if said is not None and not may_be_tls(said, host):
        return None
    try:
        with access.as_client() as client:
            return find_tls_trouble(host, port, client)
    except OSError:  # no descriptors are left, for example
        return None


def tls_trouble(address: str, access: Access | OpenedAccess, said: str | None = None) -> str | None:
    """The trouble of `find` in words that name options of a switch that has a parent."""
    found = find(address, access, said)
    return None if found is None else found.told(ADVICE)
