"""Why TLS to a parent fails, in words that say what to do."""

from __future__ import annotations

from typing import Final

from inagg_link.tls import TlsClient, TlsFault, find_tls_trouble

from ..addresses import split_address
from .access import Access

WORDS: Final = {
    TlsFault.SERVED: "it serves with TLS: give --parent-ca",
    TlsFault.NOT_SERVED: "it does not serve with TLS: leave out --parent-ca, or give it --tls-cert and --tls-key",
    TlsFault.CERTIFICATE_WANTED: "it wants a certificate that its --client-ca has signed: give --tls-cert and "
    "--tls-key",
    TlsFault.UNTRUSTED: "its certificate cannot be trusted ({why}): give --parent-ca of the authority that signed it, "
    "and the host by a name in it",
}


def tls_trouble(address: str, access: Access) -> str | None:
    """What is wrong between ``address`` (host:port) and this ``access``; None if that is not to be seen.

    Connects once more, for the time of a handshake. The text names options of a switch that has a parent.
    """
    client = TlsClient(access.ca, access.certificate, access.key, access.server_name) if access.tls else None
    found = find_tls_trouble(*split_address(address), client)
    return None if found is None else found.told(WORDS)
