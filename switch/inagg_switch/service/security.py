"""Security of a server: TLS, mutual TLS, shared secrets, and when none of it is needed. `callers` says who calls."""

from __future__ import annotations

import hmac
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc

from inagg_link import tls
from inagg_link.tls import TlsClient
from inagg_link.validity import validity_of
from inagg_proto import bearer

from ..addresses import is_unix, split_address

LIKE_A_NAME: Final = re.compile(r"[\w.-]+:[^:]+")
"""A secret that looks like a name and a secret, but for a space."""


class SecurityError(ValueError):
    """A server or client that cannot be set up as asked; the text says what to do."""


OPERATOR: Final = "operator"
"""The name of the secret, or in the certificate, that makes its owner an operator, unless other names are given."""


@dataclass(frozen=True, slots=True)
class Security:
    """Security of a server. ``client_ca``: certificates of clients must be signed by one of these (mutual TLS).

    ``insecure_anywhere``: serve without TLS on addresses that other machines can reach. ``secret``: what callers of
    the control service must know.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    secret: str | None = None
    secret_file: Path | None = None
    """One secret, or a line ``name: secret`` for each principal. Read again by `Secrets.reload`."""
    operators: frozenset[str] = frozenset({OPERATOR})
    """Principals who may evict jobs and drain. Where nobody has a name, everybody may."""
    insecure_anywhere: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SecurityError("TLS needs both a certificate and its key: give --tls-cert and --tls-key")
        if self.client_ca is not None and self.certificate is None:
            raise SecurityError("mutual TLS needs a certificate of the switch too: give --tls-cert and --tls-key")
        if self.secret is not None:
            check_secret(self.secret)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None

    @property
    def wants_secret(self) -> bool:
        """Whether callers must know one."""
        return self.secret is not None or self.secret_file is not None

    def named(self, secrets: Secrets) -> bool:
        """Whether callers have names: then only some are operators."""
        return self.client_ca is not None or any(secrets.by_name)

    def secrets(self) -> Secrets:
        """The secrets, as they are now. Raises `SecurityError`."""
        by_name = {} if self.secret is None else {"": self.secret}
        return Secrets(by_name, self.secret_file)

    def check_address(self, address: str, danger: str = "") -> None:
        """Raises `SecurityError` if it is not safe to listen on ``address`` and nobody asked for that by name.
        ``danger``: what other machines could do."""
        if not (self.tls or self.insecure_anywhere or is_local(address)):
            danger = danger or f"reach {address}, and without TLS they could read and forge what is said there"
            raise SecurityError(
                f"other machines could {danger}: give --tls-cert and --tls-key, or listen on 127.0.0.1, or ask for it "
                "by name with --insecure"
            )

    def check_files(self) -> None:
        """Raises `SecurityError` for files of certificates and secrets that cannot be used."""
        self.certificate_configuration()
        self.secrets()

    def credentials(self, changed: Callable[[], bool]) -> grpc.ServerCredentials | None:
        """Credentials of a server for TLS; None without it. Asked with each connection, ``changed`` says whether the
        files are to be read again. Raises `SecurityError` for files that cannot be used."""
        first = self.certificate_configuration()
        if first is None:
            return None

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            try:
                return self.certificate_configuration() if changed() else None
            except SecurityError:  # somebody has changed a file since `check_files`: the old ones stay
                return None

        mutual = self.client_ca is not None
        # None means "no change", which the stubs of grpc do not know.
        return grpc.dynamic_ssl_server_credentials(first, fetch, mutual)  # type: ignore[arg-type]

    def certificate_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates in the files, None without TLS. Raises `SecurityError` for files that cannot be used."""
        if self.certificate is None or self.key is None:
            return None
        certificate, key = read(self.certificate), read(self.key)
        self.server_context()  # gRPC says only that it cannot listen; OpenSSL says why
        ca = read(self.client_ca) if self.client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def server_context(self) -> ssl.SSLContext | None:
        """The certificates in the files for who does without gRPC, None without TLS. Raises `SecurityError` for files
        that cannot be used."""
        if self.certificate is None:
            return None
        check_files(TlsClient(self.client_ca, self.certificate, self.key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # else OpenSSL may ask at the terminal
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # ssl.SSLError is one: such as for a key that is too short
            raise SecurityError(f"{self.certificate} and {self.key} cannot be used: {error}") from None
        return context

    def file_warnings(self, secrets: Secrets) -> list[tuple[str, dict[str, str]]]:
        """Warnings of files that are odd, though they can be used: names of events for the log, and their fields.
        Raises `SecurityError` for a file that cannot be read."""
        found = []
        if self.certificate is not None:
            validity = validity_of(read(self.certificate))
            why = validity.why_not(datetime.now(UTC)) if validity is not None else None
            if why is not None:
                hint = "no caller trusts it: put a valid one there, and send SIGHUP"
                what = f"the certificate in {self.certificate} {why}"
                found.append(("certificate_not_valid", {"what": what, "hint": hint}))
        if self.secret_file is not None and LIKE_A_NAME.fullmatch(secrets.by_name.get("", "")):
            what = f"{self.secret_file} is read as one secret without a name, so whoever knows it is an operator"
            hint = "if a name stands before the colon, put a space after that"
            found.append(("secret_without_name", {"what": what, "hint": hint}))
        return found


class Secrets:
    """Secrets by name. Names are those of principals; one secret without a name is everybody's."""

    def __init__(self, by_name: Mapping[str, str], file: Path | None = None) -> None:
        """``file`` adds to ``by_name``. Raises `SecurityError`."""
        self._given, self._file = dict(by_name), file
        self.by_name = self._read()
        self.reloads = 0
        """Number of times that secrets were read again, and certificates with them."""

    def reload(self) -> None:
        """Read the file again. Raises `SecurityError`; then the secrets stay as they were."""
        self.by_name = self._read()
        self.reloads += 1

    def _read(self) -> dict[str, str]:
        return {**self._given, **(read_secrets(self._file) if self._file is not None else {})}

    def who(self, given: bytes) -> str | None:
        """The principal that a bearer token makes somebody; None if it is nobody's. All are compared, in constant time
        each: how long it takes says nothing of them."""
        names = [name for name, secret in self.by_name.items() if hmac.compare_digest(given, bearer(secret).encode())]
        return names[0] if names else None


def read_secrets(path: Path) -> dict[str, str]:
    """The secrets in a file, by name: a single one without, or lines ``name: secret``; ``#`` begins a comment. No line
    ends in a colon: that is a name without its secret. Raises `SecurityError`."""
    try:
        lines = [line.strip() for line in read(path).decode("ascii").splitlines()]
    except UnicodeDecodeError:
        raise SecurityError(f"{path}: a shared secret is visible ASCII characters, without spaces") from None
    lines = [line for line in lines if line and not line.startswith("#")]
    found: dict[str, str] = {}
    for line in lines:
        name, colon, secret = line.partition(": ")
        if not colon and line.endswith(":"):
            raise SecurityError(f"{path}: there is no secret after {line!r}")
        if colon and not name:
            raise SecurityError(f"{path}: there is no name before a colon and a space")
        name, secret = (name.strip(), secret.strip()) if colon else ("", line)
        if name in found:
            what = f"{name!r} stands twice" if name else "give each of several secrets a name (name: secret)"
            raise SecurityError(f"{path}: {what}")
        try:
            check_secret(secret)
        except SecurityError as error:
            hint = "" if name else " (of several, each has a line: name, colon, space, secret)"
            raise SecurityError(f"{path}: {error}{hint}") from None
        found[name] = secret
    if not found:
        raise SecurityError(f"{path}: there is no secret in it")
    if "" in found and len(found) > 1:
        raise SecurityError(f"{path}: give each of several secrets a name (name: secret)")
    if len(set(found.values())) < len(found):
        raise SecurityError(f"{path}: two names have the same secret")
    return found


def check_secret(secret: str) -> None:
    """Raises `SecurityError` unless ``secret`` can be sent as metadata: visible ASCII, no spaces."""
    if not secret or not all("!" <= character <= "~" for character in secret):
        raise SecurityError("a shared secret must be at least one visible ASCII character, without spaces")


def read(path: Path) -> bytes:
    """The bytes of a file. Raises `SecurityError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"cannot read {path}: {error.strerror}") from None


def check_files(client: TlsClient) -> None:
    """`inagg_link.tls.check_files`. Raises `SecurityError`: of a bad file gRPC says only that it cannot connect."""
    try:
        tls.check_files(client)
    except tls.OwnFileError as error:
        raise SecurityError(str(error)) from None


def is_local(address: str) -> bool:
    """Whether only this machine can reach ``address`` (``host:port``, ``[v6]:port`` or ``unix:...``)."""
    if is_unix(address):
        return True
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
