"""Outputs of the core: news of jobs, answers to waiting Joins, and orders to the switch.

`registry.Registry.drain` gives them in the order in which they came about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..binding import Binding
from .refusals import ControlError

ROOT: Final = ""
"""The name of the switch that has the registry."""


class Cause(IntEnum):
    """Cause of the end of an epoch or a job. The numbers are those of `inagg.v1.Cause`."""

    NEW_EPOCH = 1
    MEMBER_FAILED = 2
    ALL_LEFT = 3
    ENDED_BY_MEMBER = 4
    NOT_REJOINED = 5
    NEVER_STARTED = 6
    SWITCH_ERROR = 7
    EVICTED = 8


# ------------------------------------------------------------------------------------------ news of a job


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """All ranks have joined and the switch is set up."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """The epoch is over; ``rank`` is to blame or asked for it, if it was one."""

    epoch: int
    cause: Cause
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A rank waits in the barrier; ``missing`` are those that do not yet."""

    rank: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A member was silent for too long; the rest is what the switch saw of it."""

    rank: int
    silent_s: float
    contributions: int
    last_contribution_s: float | None
    slots_waiting: int
    text: str


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member left."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """Slots have waited for ``ranks`` for a while. ``slots`` 0: no longer."""

    slots: int
    longest_s: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over; the last event of a job."""

    cause: Cause
    rank: int | None
    text: str


Event = EpochStarted | EpochEnded | MemberJoined | MemberFailed | MemberLeft | Stalled | JobEnded
"""Names and fields are those of the messages in `inagg.v1.Event`."""


def name_of(event: Event) -> str:
    """The name of an event in logs and messages: ``epoch_started``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


# ------------------------------------------------------------------------------------------ outputs


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the subscribers of job number ``job``."""

    job: int
    name: str
    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch, as a Join that succeeds is told it: its number, and what each switch that the job uses is bound to, by
    its name and shard."""

    epoch: int
    by_switch: Mapping[str, tuple[Binding, ...]]

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of this switch itself, which is the root where there are several."""
        return self.by_switch[ROOT]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The Join with this ticket returns."""

    ticket: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Refused:
    """The Join with this ticket fails."""

    ticket: int
    error: ControlError


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind ``by_switch[name][i]`` on shard i of each switch; then call `Registry.bound` or `Registry.bind_failed` with
    ``serial``."""

    job: int
    serial: int
    by_switch: Mapping[str, tuple[Binding, ...]]


@dataclass(frozen=True, slots=True)
class Unbind:
    """Unbind the job on every shard of the ``switches`` that ever had it; then call `JobTable.unbound` or
    `Quarantine.failed`."""

    job: int
    switches: frozenset[str]


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake of ours met this job, which has been ended for it. For the log."""

    job: int
    name: str
    error: Exception


Output = Emit | Admitted | Refused | Bind | Unbind | Bug
