"""Interface between a control plane and a switch, whatever the switch is made of.

The software switch is the first driver; bmv2 (P4Runtime) and Tofino (BF Runtime) are others. A driver holds
no policy: admission, leases, tokens and epochs are the control plane's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from inagg_wire.errors import Reason
from inagg_wire.layout import LANE_MULTIPLE

from .binding import Address, Binding


@dataclass(frozen=True, slots=True)
class Shard:
    """One data plane: where workers send to, how many slots it has (a power of two), and the prefix of the multicast
    groups of its jobs (`inagg_switch.software.multicast`), if it can send to such. ``anywhere``: workers send to any
    address of its machine; ``address`` then has the unspecified host, or, of a switch below this one, the host that its
    partial sums come from."""

    address: Address
    slots: int
    groups: str | None = None
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what the switch can serve; admission refuses the rest and says what would fit."""

    formats: frozenset[str]
    workers: int
    lanes: int
    """Most lanes of a block."""
    datagram_bytes: int
    """Most UDP payload of a datagram."""
    slots: int
    """Slots of each shard."""
    jobs: int = 1024
    """Jobs at a time, those included that it has still to drop."""
    lane_step: int = LANE_MULTIPLE
    """A job's lanes are a multiple of this."""
    more_lanes: str | None = None
    """Advice to an operator for blocks of more lanes; None: nothing helps."""
    trees: bool = False
    """Whether switches can be below it."""
    alone: bool = True
    """Whether it can be the only switch of a job."""
    scatters: bool = False
    """Whether a result can go to one worker alone."""
    window: int | None = None
    """Most blocks of a window that nobody asked for; None: that does not depend on this switch."""
    receive_bytes: int | None = None
    """Bytes of datagrams that a shard holds until it takes them, as its kernel counts (a full batch is charged 1.01
    times its bytes); None: it takes them as they come, or nobody knows."""


@dataclass(slots=True)
class JobCounters:
    """Counts of one job on one shard, over all its epochs; lists are by rank."""

    contributions: list[int]
    """Contributions that went into a sum."""
    duplicates: list[int]
    """Contributions dropped because the sum had them and was not complete."""
    resends: list[int]
    """Results sent again to one worker that asked by repeating its contribution."""
    stale: list[int]
    bytes_in: list[int]
    results: int = 0
    """Sums completed and multicast."""
    invalid_codes: int = 0
    """Lanes whose code names no level; they count as zero."""
    partials: int = 0
    """Datagrams of partial sums sent to the parent for the first time; 0 where there is none."""
    partials_again: int = 0
    """Datagrams of partial sums sent to the parent again, since a child repeated its contribution."""


BY_RANK: Final = ("contributions", "duplicates", "resends", "stale", "bytes_in")
"""The fields of `JobCounters` that are lists."""
TOTALS: Final = ("results", "invalid_codes", "partials", "partials_again")
"""The others."""


@dataclass(slots=True)
class Counters:
    """Counts of one shard since it started."""

    datagrams_in: int = 0
    bytes_in: int = 0
    datagrams_out: int = 0
    bytes_out: int = 0
    notices: int = 0
    send_refused: int = 0
    """Datagrams that the kernel did not take."""
    kernel_drops: int = 0
    """Datagrams that the kernel dropped because the socket's receive buffer was full."""
    cpu_s: float = 0.0
    """CPU time of the data plane, user and system; 0 where there is no such thing."""
    drops: dict[Reason, int] = field(default_factory=dict)
    link_drops: dict[str, int] = field(default_factory=dict)
    """Frames that were dropped before they were datagrams to the data port, by why. Of P4 switches: elsewhere a kernel
    drops them."""
    not_captured: int = 0
    """Datagrams that were not recorded, since the capture is as large as it may be."""
    faults: dict[str, int] = field(default_factory=dict)
    """Datagrams that were harmed on purpose, by what was done to them; empty unless that was asked for."""
    jobs: dict[int, JobCounters] = field(default_factory=dict)

    @property
    def drops_by_label(self) -> dict[str, int]:
        """All drops, by what people and programs call the reason."""
        return {reason.label: count for reason, count in self.drops.items()} | self.link_drops


COUNTED: Final = (
    "datagrams_in", "bytes_in", "datagrams_out", "bytes_out", "notices", "send_refused", "kernel_drops", "cpu_s",
)  # fmt: skip
"""The fields of `Counters` that are numbers, and of `inagg.v1.ShardStats`."""


@dataclass(frozen=True, slots=True)
class SlotWait:
    """A slot whose children have no result yet: which of them are missing (none: the parent has not answered), and how
    long ago its first contribution came."""

    slot: int
    generation: int
    missing: tuple[int, ...]
    waiting_s: float


class DriverError(RuntimeError):
    """The switch did not do what it was asked; the text says what and why."""


class Driver(Protocol):
    """A switch as the control plane sees it. Methods raise `DriverError`. Calls for one shard come from one thread at a
    time; those for different shards may come from different ones."""

    name: str

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The data planes, in order; blocks are striped over them (block mod number of shards)."""

    @property
    def limits(self) -> Limits:
        """Limits of this switch."""

    def admit(self, workers: Sequence[tuple[Address, ...]]) -> str | None:
        """Reason why no job can have ``workers``, each with its address for each shard, and which it could have; None
        if one can. Asks no data plane: `bind` finds nothing wrong with them that this does not. For any thread."""

    def bind(self, shard: int, binding: Binding) -> None:
        """Admit a job, or its new epoch: clear the slots of the lease, then accept its datagrams.

        A binding of the same job number replaces the old one; its counters go on.
        """

    def unbind(self, shard: int, job: int) -> None:
        """Drop all further datagrams of ``job`` and forget its counters.

        Unknown jobs are no error: a restarted switch knows none.
        """

    def counters(self, shard: int) -> Counters:
        """A snapshot."""

    def waiting(self, shard: int, job: int, limit: int) -> tuple[int, list[SlotWait]] | None:
        """Number of slots of ``job`` that wait, and the ``limit`` that wait longest, longest first; None if this switch
        does not tell what its slots hold."""

    def died(self) -> str | None:
        """Sentence on the first data plane that has ended though it was not told to; None if all serve. For any
        thread."""

    def restart(self, shard: int) -> None:
        """Start a data plane again that has died, at the same address. It knows no job then. Raises `DriverError` if
        that cannot be."""

    def close(self) -> None:
        """Stop the data planes. No error if called twice."""
