"""Where a training runs, as the options of `inagg advise` say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..topology import LinkSpec
from .model import Placement
from .racks import Racks


@dataclass(frozen=True, slots=True)
class Place:
    """Links and trunks as `LinkSpec.parse` takes them; ``racks`` 0: none."""

    link: str
    workers: int
    racks: int
    trunk: str
    placement: Placement

    def of_model(self) -> Racks | None:
        """Racks for the cost model, if there are any."""
        return Racks(self.racks, rate_of(self.trunk)) if self.racks else None

    def about(self) -> dict[str, Any]:
        """Description for programs."""
        racks = {"racks": self.racks, "trunk": self.trunk} if self.racks else {}
        return {"link": self.link, "workers": self.workers, **racks, "placement": self.placement}

    def words(self) -> str:
        """Description for people."""
        racks = f" in {self.racks} racks" if self.racks else ""
        return f"{self.workers} workers{racks}, {self.link}" + (f", trunks {self.trunk}" if self.racks else "")


def rate_of(link: str) -> float:
    """Bits a second; 0 for none."""
    return LinkSpec.parse(link).rate_bits_per_s
