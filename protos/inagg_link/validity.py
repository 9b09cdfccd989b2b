"""Period in which a certificate is valid: the standard library tells it of certificates of authorities alone."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
VERSION: Final = 0xA0
"""DER's tag of a field that certificates of version 1 lack, and the tags of the two ways to write a time."""
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18


@dataclass(frozen=True, slots=True)
class Validity:
    """Period in which a certificate is valid."""

    begins: datetime
    ends: datetime

    def why_not(self, now: datetime) -> str | None:
        """Reason why it is of no use ``now``; None if it is valid."""
        if now < self.begins:
            return f"is not valid before {self.begins:%Y-%m-%d %H:%M:%S} UTC"
        if now > self.ends:
            return f"has expired, on {self.ends:%Y-%m-%d %H:%M:%S} UTC"
        return None


def validity_of(pem: bytes) -> Validity | None:
    """The period of the first certificate in ``pem``, which is the one that a server shows as its own; None if it
    cannot be read. Nothing is checked."""
    text = pem.decode("ascii", "replace")
    start = text.find(BEGIN)
    end = text.find(END, start)
    if start < 0 or end < 0:
        return None
    try:
        der = ssl.PEM_cert_to_DER_cert(text[start : end + len(END)])
        # RFC 5280, 4.1: Certificate { TBSCertificate { [version], serial number, algorithm, issuer, validity, ... } }
        fields = _parts(_parts(_parts(der)[0][1])[0][1])
        _, validity = fields[4 if fields[0][0] == VERSION else 3]
        begins, ends = (_time(*part) for part in _parts(validity))
    except (ValueError, IndexError):
        return None
    return Validity(begins, ends)


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of what stands one after the other. Raises ValueError or IndexError."""
    found, at = [], 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:  # the length of the length
            count = length & 0x7F
            length = int.from_bytes(der[at : at + count])
            at += count
        if at + length > len(der):
            raise ValueError("cut off")
        found.append((tag, der[at : at + length]))
        at += length
    return found


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == UTC_TIME:  # two digits of the year, from 1950 on
        text = f"{20 if int(text[:2]) < 50 else 19}{text}"
    elif tag != GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
