"""Reasons why TLS to a server fails: gRPC says only that it cannot connect, and tries again."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Final

from .validity import validity_of

LIMIT_S = 3.0
"""Seconds for a connection, and for what is said first on it."""

SIGNS: Final = (
    "socket closed",
    "tls handshake",
    "ssl handshake",
    "security handshaker",
    "verification check",
    "reset",
    "end of tcp stream",
    "http1",
)
"""Words of gRPC's texts on a connection that came about, and on which the first words were not understood, or were not
to be trusted."""


class TlsFault(Enum):
    """A fault between a client and a server."""

    SERVED = auto()
    """The server speaks TLS, and the client does not."""
    NOT_SERVED = auto()
    """The client speaks TLS, and the server does not."""
    OWN_FILE = auto()
    """A file of the client's cannot be used."""
    EXPIRED = auto()
    """The server's certificate has expired, or that of who signed it."""
    NOT_YET_VALID = auto()
    """The server's certificate begins to be valid later."""
    UNKNOWN_ISSUER = auto()
    """The client does not know who signed the server's certificate."""
    WRONG_NAME = auto()
    """The server's certificate is not for the name by which the client calls it."""
    UNTRUSTED = auto()
    """The client cannot trust the server's certificate, for another reason."""
    CERTIFICATE_WANTED = auto()
    """The server wants a certificate of the client, who has none."""
    CERTIFICATE_REFUSED = auto()
    """The server ends the connection when it sees the client's certificate."""


_NOT_TRUSTED: Final = "its certificate cannot be trusted ({why})"
WHAT: Final[Mapping[TlsFault, str]] = {
    TlsFault.SERVED: "it serves with TLS",
    TlsFault.NOT_SERVED: "it does not serve with TLS",
    TlsFault.OWN_FILE: "{why}",
    TlsFault.CERTIFICATE_WANTED: "it wants a certificate that its --client-ca has signed",
    TlsFault.CERTIFICATE_REFUSED: "it refuses the certificate that it is shown ({why})",
}
"""Sentences on faults, but for those of a certificate that cannot be trusted (`_NOT_TRUSTED`); each program says what
to do about it, in names of its own."""

_VERIFY_FAULTS: Final = {
    2: TlsFault.UNKNOWN_ISSUER,  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT; these from openssl/x509_vfy.h
    9: TlsFault.NOT_YET_VALID,
    10: TlsFault.EXPIRED,
    18: TlsFault.UNKNOWN_ISSUER,  # self-signed
    19: TlsFault.UNKNOWN_ISSUER,  # self-signed, in the chain
    20: TlsFault.UNKNOWN_ISSUER,  # locally
    21: TlsFault.UNKNOWN_ISSUER,  # cannot verify the first
    62: TlsFault.WRONG_NAME,
    64: TlsFault.WRONG_NAME,  # an address
}
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons for an answer that is no TLS. Of an end, or an alert, it is not known what is behind it: who took
it for a server without TLS would turn off his own, and say his secret to whoever listens."""
_OTHER_KEY: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})


@dataclass(frozen=True, slots=True)
class TlsTrouble:
    """A fault, and what is known of it: what the library says of a certificate, or what is wrong with a file."""

    fault: TlsFault
    why: str = ""

    @property
    def what(self) -> str:
        """Sentence on the fault."""
        return WHAT.get(self.fault, _NOT_TRUSTED).format(why=self.why)

    def told(self, advice: Mapping[TlsFault, str]) -> str:
        """Sentence on the fault, and what to do about it, by the ``advice`` of a program."""
        return f"{self.what}: {advice[self.fault]}"


@dataclass(frozen=True, slots=True)
class TlsClient:
    """A client with TLS. ``ca``: file of the authorities that it trusts, None: the system's; ``certificate`` and
    ``key``: files of what it shows; ``server_name``: the name in the server's certificate, None: the host."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None


class OwnFileError(ValueError):
    """A file of a client's cannot be used; the text names it, and says what is wrong."""


def may_be_tls(said: str, host: str) -> bool:
    """Whether a text of gRPC's on a call to ``host`` that failed may come of TLS: of a name with several addresses, at
    one of which nobody listens, it is about the one that was tried last."""
    return any(sign in said.lower() for sign in SIGNS) or ("refused" in said.lower() and _is_name(host))


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def check_files(client: TlsClient) -> None:
    """Raises `OwnFileError` if a file of ``client`` is not what it should be. Asks nobody for a passphrase."""
    if client.ca is not None:
        _check_certificates(client.ca)
    if client.certificate is not None and client.key is not None:
        _check_certificates(client.certificate)
        _check_key(client.certificate, client.key)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # how long a key must be is not what is asked here
    return context


def _check_certificates(path: str | Path) -> None:
    data = read_file(path)
    try:
        _context().load_verify_locations(path)
    except ssl.SSLError:
        if data.startswith(b"\x30\x82"):  # how a certificate in DER begins
            raise OwnFileError(
                f"{path} is not in PEM, but in DER: openssl x509 -inform der -in {path} -out FILE makes that of it"
            ) from None
        there = "a key, and no certificate" if b"PRIVATE KEY-----" in data else "no certificate in PEM"
        raise OwnFileError(f"{path} holds {there}") from None


def _check_key(certificate: str | Path, key: str | Path) -> None:
    data = read_file(key)

    def refuse() -> str:
        raise OwnFileError(f"{key} is encrypted: give a key without a passphrase")

    try:
        _context().load_cert_chain(certificate, key, refuse)  # without the last OpenSSL asks at the terminal
    except ssl.SSLError as error:
        if error.reason in _OTHER_KEY:
            raise OwnFileError(f"{key} is not the key of the certificate in {certificate}") from None
        if error.reason:
            raise OwnFileError(f"{certificate} and {key} cannot be used: {error}") from None
        there = "a certificate, and no key" if b"-----BEGIN CERTIFICATE-----" in data else "no key in PEM"
        raise OwnFileError(f"{key} holds {there}") from None


def read_file(path: str | Path) -> bytes:
    """Raises `OwnFileError` if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OwnFileError(f"cannot read {path}: {error.strerror}") from None


def find_tls_trouble(host: str, port: int, client: TlsClient | None) -> TlsTrouble | None:
    """The trouble between a server and ``client`` (None: one without TLS); None if that is not to be seen.

    Connects once more, for the time of a handshake, and for `LIMIT_S` at most where nothing is said. Raises nothing.
    """
    try:
        if client is not None:
            check_files(client)  # before anybody is called: what is wrong there is none of the server's
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
                return None if _says_something(secured) else _of_own_certificate(client)
    except OwnFileError as error:
        return TlsTrouble(TlsFault.OWN_FILE, str(error))
    except ssl.SSLCertVerificationError as error:
        return TlsTrouble(_VERIFY_FAULTS.get(error.verify_code, TlsFault.UNTRUSTED), error.verify_message.rstrip("."))
    except ssl.SSLError as error:
        return TlsTrouble(TlsFault.NOT_SERVED) if error.reason in _NO_TLS else None
    except (OSError, ValueError):
        return None


def _of_own_certificate(client: TlsClient) -> TlsTrouble:
    """The trouble with a server that has ended the connection when it was to see a certificate. It says no more."""
    if client.certificate is None:
        return TlsTrouble(TlsFault.CERTIFICATE_WANTED)
    try:
        validity = validity_of(Path(client.certificate).read_bytes())
    except OSError:
        validity = None
    why = None if validity is None else validity.why_not(datetime.now(UTC))
    found = "its --client-ca has not signed it, as it seems" if why is None else f"it {why}"
    return TlsTrouble(TlsFault.CERTIFICATE_REFUSED, found)


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
