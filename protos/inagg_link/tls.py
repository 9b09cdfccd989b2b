"""Why TLS to a server fails: gRPC says only that it cannot connect, and tries again."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

LIMIT_S = 3.0
"""For a connection, and for what is said first on it."""


class TlsFault(Enum):
    """What is wrong between a client and a server."""

    SERVED = auto()
    """The server speaks TLS, and the client does not."""
    NOT_SERVED = auto()
    """The client speaks TLS, and the server does not."""
    UNTRUSTED = auto()
    """The client cannot trust the server's certificate."""
    CERTIFICATE_WANTED = auto()
    """The server wants a certificate of the client, or another one."""


@dataclass(frozen=True, slots=True)
class TlsTrouble:
    """A fault, and in `UNTRUSTED` what the library says of the certificate."""

    fault: TlsFault
    why: str = ""

    def told(self, words: Mapping[TlsFault, str]) -> str:
        """What a program says of it, in its ``words``, in which {why} stands for that."""
        return words[self.fault].format(why=self.why)


@dataclass(frozen=True, slots=True)
class TlsClient:
    """How a client with TLS calls. ``ca``: file of the authorities that it trusts, None: the system's; ``certificate``
    and ``key``: files of what it shows; ``server_name``: the name in the server's certificate, None: the host."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None


def find_tls_trouble(host: str, port: int, client: TlsClient | None) -> TlsTrouble | None:
    """What is wrong between a server and ``client`` (None: one without TLS); None if that is not to be seen.

    Connects once more, for the time of a handshake, and for `LIMIT_S` at most where nothing is said. Raises nothing.
    """
    try:
        with socket.create_connection((host, port), LIMIT_S) as plain:
            if client is None:
                return TlsTrouble(TlsFault.SERVED) if _speaks_tls(plain) else None
            context = ssl.create_default_context(cafile=client.ca)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on; gRPC is not as strict
            context.set_alpn_protocols(["h2"])
            if client.certificate is not None:
                context.load_cert_chain(client.certificate, client.key)
            with context.wrap_socket(plain, server_hostname=client.server_name or host) as secured:
                # Who wants a certificate looks at it after our side of the handshake (RFC 8446, 4.4.2.4), and ends the
                # connection; all others begin with their settings (RFC 9113, 3.4).
                return None if _says_something(secured) else TlsTrouble(TlsFault.CERTIFICATE_WANTED)
    except ssl.SSLCertVerificationError as error:
        return TlsTrouble(TlsFault.UNTRUSTED, error.verify_message)
    except ssl.SSLError:
        return TlsTrouble(TlsFault.NOT_SERVED)
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
