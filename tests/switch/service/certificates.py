"""An authority and certificates signed by it, made for one test run."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key, in PEM."""

    certificate: Path
    key: Path


_SIGNS = x509.KeyUsage(
    key_cert_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        self.pair = self._write(name, certificate.sign(self._key, hashes.SHA256()), self._key)

    def issue(
        self,
        name: str,
        *,
        names_signer: bool = True,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
        passphrase: bytes | None = None,
        curve: ec.EllipticCurve | None = None,
    ) -> Pair:
        """A certificate for ``name``. ``names_signer``: it says which key has signed it, as those of Python 3.13 and
        later must, unless `ssl.VERIFY_X509_STRICT` is off. ``begins`` and ``ends``: from now. ``passphrase`` and
        ``curve``: of its key."""
        key = ec.generate_private_key(curve or ec.SECP256R1())
        hosts = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key.public_key(), begins, ends).add_extension(hosts, critical=False)
        if names_signer:
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(signer, critical=False)
        return self._write(name, builder.sign(self._key, hashes.SHA256()), key, passphrase)

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )

    def _write(
        self,
        name: str,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
        passphrase: bytes | None = None,
    ) -> Pair:
        encryption = (
            serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return pair
