"""Formats whose partial sums are codes, for tests of the cost model: it takes what the format says of them."""

from __future__ import annotations

from dataclasses import asdict

from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.layout import Encoding, Op


class Reencoded(JobFormat):
    """A format with partial sums that are encoded as contributions are."""

    __slots__ = ()

    def partial(self, op: Op, workers: int) -> Encoding:
        return self.encoding(op)


def reencoded(name: str) -> JobFormat:
    """``name`` with that."""
    return Reencoded(**{**{f: getattr(FORMATS[name], f) for f in asdict(FORMATS[name])}, "name": f"{name}-reencode"})
