"""Security of a server: TLS, mutual TLS, shared secrets, and when none of it is needed. `callers` says who calls."""

from __future__ import annotations

import hmac
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import grpc

from inagg_link import tls
from inagg_link.tls import TlsClient
from inagg_link.validity import Validity, validity_of
from inagg_proto import bearer

from ..addresses import is_unix, split_address

LIKE_A_NAME: Final = re.compile(r"[\w.-]+:[^:]+")
"""A secret that looks like a name and a secret, but for a space."""


class SecurityError(ValueError):
    """A server or client that cannot be set up as asked; the text says what to do."""


DAY: Final = timedelta(days=1)
EXPIRES_SOON: Final = 7 * DAY
"""Time before a certificate expires from which on that is said."""

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
    """One secret, or lines ``name: secret`` of principals. Read again by `Secrets.reload`."""
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
        by_name = {} if self.secret is None else {"": (self.secret,)}
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
        self.certificates()
        self.secrets()

    def credentials(
        self, first: Certificates, fetch: Callable[[], grpc.ServerCertificateConfiguration | None]
    ) -> grpc.ServerCredentials:
        """Credentials of a server that serves ``first``. Called with each connection, ``fetch`` gives what is to be
        served instead from then on; None: nothing else."""
        mutual = self.client_ca is not None
        # None means "no change", which the stubs of grpc do not know.
        return grpc.dynamic_ssl_server_credentials(first.configuration, fetch, mutual)  # type: ignore[arg-type]

    def certificates(self) -> Certificates | None:
        """The certificates in the files, None without TLS. Raises `SecurityError` for files that cannot be used."""
        if self.certificate is None or self.key is None:
            return None
        certificate, key = read(self.certificate), read(self.key)
        context = _server_context(self.certificate, self.key, self.client_ca)
        ca = read(self.client_ca) if self.client_ca is not None else None
        configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], ca)
        return Certificates(configuration, context, self.certificate, validity_of(certificate))

    def file_warnings(self, secrets: Secrets) -> list[tuple[str, dict[str, str]]]:
        """Warnings of a file of secrets that is odd, though it can be used: names of events for the log, and their
        fields."""
        found = []
        if self.secret_file is not None and any(map(LIKE_A_NAME.fullmatch, secrets.by_name.get("", ()))):
            what = f"{self.secret_file} is read as one secret without a name, so whoever knows it is an operator"
            hint = "if a name stands before the colon, put a space after that"
            found.append(("secret_without_name", {"what": what, "hint": hint}))
        return found


def _server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Raises `SecurityError` for files that cannot be used; gRPC says only that it cannot listen."""
    check_files(TlsClient(client_ca, certificate, key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL may ask at the terminal
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one: such as for a key that is too short
        raise SecurityError(f"{certificate} and {key} cannot be used: {error}") from None
    return context


class Certificates:
    """Certificates as they were read from files, and what is to be said of their dates: that they are not valid, that
    they expire soon, and that they have expired meanwhile."""

    def __init__(
        self,
        configuration: grpc.ServerCertificateConfiguration,
        context: ssl.SSLContext,
        file: Path,
        validity: Validity | None,
    ) -> None:
        """``file`` and ``validity``: of the switch's own; None: the dates are not known."""
        self.configuration = configuration
        """Certificates for gRPC."""
        self.context = context
        """Certificates for HTTP."""
        self._file, self._validity = file, validity
        self._was_valid = False
        self._told: str | None = None
        self._tell_again_at = datetime.min.replace(tzinfo=UTC)

    @property
    def ends(self) -> datetime | None:
        """When the switch's own expires; None: that is not known."""
        return None if self._validity is None else self._validity.ends

    def warnings(self, now: datetime) -> list[tuple[Literal["warning", "error"], str, dict[str, str]]]:
        """Return what is to be said ``now``, each thing once a day: levels, names of events for the log, and their
        fields. To be called when the files have been read, and then often."""
        found = self._found(now)
        if found is None or (found[1] == self._told and now < self._tell_again_at):
            return []
        self._told, self._tell_again_at = found[1], now + DAY
        return [found]

    def _found(self, now: datetime) -> tuple[Literal["warning", "error"], str, dict[str, str]] | None:
        if self._validity is None:
            return None
        why, ends = self._validity.why_not(now), self._validity.ends
        self._was_valid |= why is None
        if why is not None and not self._was_valid:
            hint = "no caller trusts it: put a valid one there, and send SIGHUP"
            what = f"the certificate in {self._file} {why}"
            return "warning", "certificate_not_valid", {"what": what, "hint": hint}
        if why is not None:
            what = f"the certificate that this switch serves {why}"
            hint = f"no new caller trusts it: put a valid one into {self._file}, and send SIGHUP"
            return "error", "certificate_expired", {"what": what, "hint": hint}
        if ends - now < EXPIRES_SOON:
            what = f"the certificate that this switch serves expires on {ends:%Y-%m-%d %H:%M:%S} UTC"
            hint = f"put a new one into {self._file}, and send SIGHUP"
            return "warning", "certificate_expires", {"what": what, "hint": hint}
        return None


Served = Callable[[], Certificates | None]
"""Certificates that a switch serves now; None: it serves without TLS."""


class Secrets:
    """Secrets by name. Names are those of principals, who may have several each, all as good; one secret without a name
    is everybody's."""

    def __init__(self, by_name: Mapping[str, tuple[str, ...]], file: Path | None = None) -> None:
        """``file`` adds to ``by_name``. Raises `SecurityError`."""
        self._given, self._file = dict(by_name), file
        self.by_name = self._read()
        self._tokens = self._bearers()

    def reload(self) -> None:
        """Read the file again. Raises `SecurityError`; then the secrets stay as they were."""
        self.by_name = self._read()
        self._tokens = self._bearers()

    def _bearers(self) -> list[tuple[str, bytes]]:
        """The name and the token of each secret. Made once: else each call, those with a wrong secret too, would make
        all of them."""
        return [(name, bearer(secret).encode()) for name, secrets in self.by_name.items() for secret in secrets]

    def _read(self) -> dict[str, tuple[str, ...]]:
        return {**self._given, **(read_secrets(self._file) if self._file is not None else {})}

    def who(self, given: bytes) -> str | None:
        """The principal that a bearer token makes somebody; None if it is nobody's. All are compared, in constant time
        each: how long it takes says nothing of them."""
        names = [name for name, token in self._tokens if hmac.compare_digest(given, token)]
        return names[0] if names else None


def read_secrets(path: Path) -> dict[str, tuple[str, ...]]:
    """The secrets in a file, by name: a single one without, or lines ``name: secret``, of which a name may have
    several; ``#`` begins a comment. No line ends in a colon: that is a name without its secret. Raises
    `SecurityError`."""
    try:
        lines = [line.strip() for line in read(path).decode("ascii").splitlines()]
    except UnicodeDecodeError:
        raise SecurityError(f"{path}: a shared secret is visible ASCII characters, without spaces") from None
    lines = [line for line in lines if line and not line.startswith("#")]
    found: dict[str, tuple[str, ...]] = {}
    owners: dict[str, str] = {}
    for line in lines:
        name, colon, secret = line.partition(": ")
        if not colon and line.endswith(":"):
            raise SecurityError(f"{path}: there is no secret after {line!r}")
        if colon and not name:
            raise SecurityError(f"{path}: there is no name before a colon and a space")
        name, secret = (name.strip(), secret.strip()) if colon else ("", line)
        if not name and found:
            raise SecurityError(f"{path}: give each of several secrets a name (name: secret)")
        try:
            check_secret(secret)
        except SecurityError as error:
            hint = "" if name else " (of several, each has a line: name, colon, space, secret)"
            raise SecurityError(f"{path}: {error}{hint}") from None
        if secret in owners:
            twice = f"{name!r} has one secret twice" if owners[secret] == name else "two names have the same secret"
            raise SecurityError(f"{path}: {twice}")
        owners[secret] = name
        found[name] = (*found.get(name, ()), secret)
    if not found:
        raise SecurityError(f"{path}: there is no secret in it")
    if "" in found and len(found) > 1:
        raise SecurityError(f"{path}: give each of several secrets a name (name: secret)")
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
