"""Why TLS to a server fails, in words that say what to do: gRPC says only that it cannot connect, and tries again."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from ..addresses import split_address
from .access import Access

LIMIT_S: Final = 3.0
"""For a connection, and for what is said first on it."""
CERTIFICATE: Final = "it wants a certificate that its --client-ca has signed: give --tls-cert and --tls-key"


def tls_trouble(address: str, access: Access) -> str | None:
    """What is wrong between ``address`` (host:port) and this ``access``; None if that is not to be seen.

    Connects once more, for the time of a handshake. The text names options of a switch that has a parent.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), LIMIT_S) as plain:
            if not access.tls:
                return "it serves with TLS: give --parent-ca" if _speaks_tls(plain) else None
            context = ssl.create_default_context(cafile=access.ca)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on; gRPC is not as strict
            context.set_alpn_protocols(["h2"])
            if access.certificate is not None:
                context.load_cert_chain(access.certificate, access.key)
            with context.wrap_socket(plain, server_hostname=access.server_name or host) as secured:
                # Who wants a certificate looks at it after our side of the handshake (RFC 8446, 4.4.2.4), and ends the
                # connection; all others begin with their settings (RFC 9113, 3.4).
                return None if _says_something(secured) else CERTIFICATE
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate cannot be trusted ({error.verify_message}): give --parent-ca of the authority that "
            "signed it, and the host by a name in it"
        )
    except ssl.SSLError:
        return "it does not serve with TLS: leave out --parent-ca, or give it --tls-cert and --tls-key"
    except (OSError, ValueError):
        return None


def _says_something(connection: ssl.SSLSocket) -> bool:
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except OSError:  # ssl.SSLError is one
        return False


def _speaks_tls(plain: socket.socket) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain):
            return True
    except ssl.SSLError:
        return False
