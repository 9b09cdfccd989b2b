"""Why TLS to a switch fails, in words that name what a rank sets."""

from __future__ import annotations

from typing import Final

from inagg_host.config import Config
from inagg_link.tls import TlsClient, TlsFault, find_tls_trouble
from inagg_proto import GRPC_PREAMBLE

from . import way

SIGNS = ("socket closed", "handshake", "reset", "end of tcp stream", "http1")
"""How gRPC's texts speak of a connection that came about, and on which the first words were not understood."""

WORDS: Final = {
    TlsFault.SERVED: "it serves with TLS: set INAGG_CA to the file of the authority that signed its certificate",
    TlsFault.NOT_SERVED: "it does not serve with TLS: leave INAGG_CA empty, or give it --tls-cert and --tls-key",
    TlsFault.CERTIFICATE_WANTED: "it wants a certificate that its --client-ca has signed: set INAGG_CERTIFICATE and "
    "INAGG_KEY",
    TlsFault.UNTRUSTED: "its certificate cannot be trusted ({why}): set INAGG_CA to the file of the authority that "
    "signed it, and INAGG_SWITCH to a name in it",
}


def tls_trouble(config: Config, address: str, said: str) -> str | None:
    """What is wrong between the switch at ``address`` and ``config``, where gRPC has ``said`` that it cannot connect;
    None if that is not to be seen. Connects once more, if ``said`` may come of TLS."""
    if not GRPC_PREAMBLE.match(said) or not any(sign in said.lower() for sign in SIGNS):
        return None
    client = None if config.ca is None else TlsClient(config.ca, config.certificate, config.key)
    found = find_tls_trouble(*way.split(address), client)
    return None if found is None else found.told(WORDS)
