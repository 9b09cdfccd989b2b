"""Datagrams of any sizes, for links that take batches of equal ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inagg_link.addresses import Address
from inagg_link.base import Batch, check_size, split


def gather(datagrams: Sequence[bytes], peer: Address) -> list[Batch]:
    """Datagrams of any sizes as batches, in order: equal neighbours share one, as far as one call sends them."""
    runs: list[list[bytes]] = []
    for datagram in datagrams:
        check_size(len(datagram))
        if runs and len(runs[-1][0]) == len(datagram):
            runs[-1].append(datagram)
        else:
            runs.append([datagram])
    return [part for run in runs for part in split(Batch(np.frombuffer(b"".join(run), np.uint8), len(run[0]), peer))]
