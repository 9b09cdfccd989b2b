"""A buffer of equal datagrams, as numpy views: the same format as `header`, many datagrams at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from .header import Header
from .layout import FIELDS, HEADER_BYTES, datagram_bytes

Bytes = npt.NDArray[np.uint8]

HEADER_DTYPE: Final = np.dtype(
    {
        "names": [f.name for f in FIELDS],
        "formats": [f">u{f.size}" for f in FIELDS],
        "offsets": [f.offset for f in FIELDS],
        "itemsize": HEADER_BYTES,
    }
)
"""The header as a numpy structured dtype, big-endian."""


def rows(data: Bytes, size: int) -> Bytes:
    """``data`` (1-D uint8) as one row of ``size`` bytes per datagram: a view, of shape (datagrams, size).

    Raises ValueError unless ``data`` is a whole number of datagrams.
    """
    if size < 1 or data.size % size:
        raise ValueError(f"{data.size} bytes are no whole number of datagrams of {size} bytes")
    return data.reshape(-1, size)


def headers(data: Bytes, size: int) -> npt.NDArray[np.void]:
    """The headers in ``data``, a view of dtype `HEADER_DTYPE`, writable if ``data`` is; ``size`` >= 24."""
    if size < HEADER_BYTES:
        raise ValueError(f"datagrams of {size} bytes have no header, which takes {HEADER_BYTES}")
    return np.ndarray(len(rows(data, size)), HEADER_DTYPE, data, strides=(size,))


def payloads(data: Bytes, size: int) -> Bytes:
    """The payloads in ``data``: a view of shape (datagrams, size - 24)."""
    return rows(data, size)[:, HEADER_BYTES:]


def allocate(header: Header, count: int) -> tuple[Bytes, int]:
    """A zeroed buffer of ``count`` datagrams that all carry ``header``, and the size of each.

    The caller sets slot, generation and payload through `headers` and `payloads`.
    """
    size = datagram_bytes(header.format, header.lanes)
    data = np.zeros(count * size, np.uint8)
    rows(data, size)[:, :HEADER_BYTES] = np.frombuffer(header.pack(), np.uint8)
    return data, size
