"""Admission of jobs to a switch: the numbers that can never work, those that differ from what the job of that name has,
and the room that there is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inagg_wire.errors import AdmissionError
from inagg_wire.formats import JobFormat, admit, job_format
from inagg_wire.layout import LANE_MULTIPLE, UDP_PAYLOAD_BYTES_1500, Op, datagram_bytes
from inagg_wire.names import NAME, NAME_CHARS_MAX
from inagg_wire.slots import slots_for_window

from ..driver import Limits
from ..text import count_text
from .leases import LeasePool
from .policy import HEARTBEAT_LIMIT_MIN_S, LIMIT_MAX_S, Policy
from .refusals import Code, ControlError

WINDOW_FRAMES: Final = 512
"""The window that nobody asked for, in blocks of full frames. They go 44 to a system call, so this is a dozen calls:
enough that no process waits for another to be scheduled (with two workers and a switch on two cores, 128 took a third
more processor time). As many bytes are so many more blocks of fewer lanes, as those of P4 switches are."""
WINDOW_BYTES: Final = 3 * WINDOW_FRAMES * UDP_PAYLOAD_BYTES_1500
"""Most bytes of a window of larger blocks: 128 of 13 KB, a power of two. With half of that, a block that was lost holds
up all others before it has come again: of 64 MiB with 1 % lost, 0.86 to 0.89 of the rate without loss is left, and 0.90
to 0.93 with this; the rate without loss is the same."""
SHARES: Final = 8
"""Jobs of small blocks that find slots, if nobody asks for a window: a job has no more than its share, or than it would
have with full frames."""
FINE: Final = 1 << 16
"""A format whose levels span this, such as nat8 and fix32, loses nothing if the largest of many more values sets their
scale. The noise of the others grows with it; so unless they are told otherwise their blocks are those of frames of 1500
bytes, wherever they run."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as a user asks for it; `check` has found that this switch can serve it.

    ``window``: blocks per shard, a power of two. What is None is left to the switch, and `completed` chooses it;
    ``chosen``: fields that the user left to the switch, and that it has chosen.
    """

    name: str
    workers: int
    format: JobFormat
    lanes: int
    window: int
    seed: int | None = None
    heartbeat_limit_s: float | None = None
    rejoin_limit_s: float | None = None
    chosen: frozenset[str] = frozenset()
    parts: int | None = None
    """Datagrams in which a block goes from switch to switch. None: there is one switch alone."""

    @property
    def slots(self) -> int:
        """Slots of each shard that workers use."""
        return 2 * self.window

    @property
    def slots_leased(self) -> int:
        """Slots to lease on each shard: those at the root, which has one for each part of a block. The other switches
        have theirs among the same numbers, so that no two jobs ever share any."""
        return self.slots * (self.parts or 1)

    def completed(self, policy: Policy, seed: int) -> JobSpec:
        """The spec of the job that is made of this: what the user left to the switch is chosen."""
        usual = {"seed": seed, "heartbeat_limit_s": policy.heartbeat_limit_s, "rejoin_limit_s": policy.rejoin_limit_s}
        choices: dict[str, Any] = {field: value for field, value in usual.items() if getattr(self, field) is None}
        return replace(self, **choices, chosen=self.chosen | choices.keys())

    def difference(self, job: JobSpec) -> str | None:
        """The difference from ``job``, a clause that names the field and both values; None if there is none.

        What this leaves to the switch (None or chosen) differs from nothing.
        """
        for field in ("workers", "format", "lanes", "window", "seed", "heartbeat_limit_s", "rejoin_limit_s"):
            mine, its = (getattr(spec, field) for spec in (self, job))
            if mine is not None and mine != its and field not in self.chosen:
                if isinstance(mine, JobFormat):
                    mine, its = mine.name, its.name
                return f"it has {field} {its}, and this call says {mine}"
        return None


def check(
    limits: Limits,
    *,
    name: str,
    workers: int,
    format_name: str,
    lanes: int | None,
    window: int | None,
    seed: int | None = None,
    heartbeat_limit_s: float | None = None,
    rejoin_limit_s: float | None = None,
    tree: bool = False,
) -> JobSpec:
    """The spec of a job that a switch with ``limits``, or a ``tree`` of such, can serve when it has room.

    Raises `ControlError` (INVALID_ARGUMENT) that says what could be served.
    """
    check_name(name)
    try:
        fmt = job_format(format_name)
        if fmt.name not in limits.formats:
            raise AdmissionError(
                f"this switch does not serve {fmt.name}; choose one of {', '.join(sorted(limits.formats))}"
            )
        if workers > limits.workers and not tree:
            raise AdmissionError(
                f"{workers} workers: one switch serves 1 to {limits.workers}; more join through switches below it"
            )
        if not tree and not limits.alone:
            raise AdmissionError("this switch runs a program for a tree: workers join through the switches below it")
        most = min(limits.lanes, fmt.max_lanes(max(workers, 1), limits.datagram_bytes))
        chosen = frozenset(field for field, value in (("lanes", lanes), ("window", window)) if value is None)
        lanes = usual_lanes(limits, fmt, max(workers, 1), tree=tree) if lanes is None else lanes
        if lanes > limits.lanes:
            more = f"; for more, {limits.more_lanes}" if limits.more_lanes else ""
            raise AdmissionError(f"{lanes} lanes: this switch takes up to {most} for {fmt.name}{more}")
        if lanes % limits.lane_step and limits.lane_step > LANE_MULTIPLE:
            steps = ", ".join(str(step) for step in range(limits.lane_step, limits.lanes + 1, limits.lane_step))
            raise AdmissionError(f"{lanes} lanes: jobs of this switch have {steps}")
        admit(fmt, workers, lanes, limits.datagram_bytes)
        parts = fmt.parts(workers, lanes, limits.datagram_bytes) if tree else None
        if tree and parts is None:
            fits = fmt.tree_lanes(workers, lanes, limits.datagram_bytes)
            raise AdmissionError(f"{lanes} lanes cannot be cut into parts for the way between switches; {fits} can")
        most_slots = limits.slots // (parts or 1)
        if window is None:
            window = usual_window(fmt, workers, lanes, most_slots, limits.window)
        slots = slots_for_window(window)
    except AdmissionError as error:
        raise ControlError(Code.INVALID_ARGUMENT, f"job {name!r} cannot run here: {error}") from None
    _check_limit(name, "heartbeat_limit_s", heartbeat_limit_s, HEARTBEAT_LIMIT_MIN_S)
    _check_limit(name, "rejoin_limit_s", rejoin_limit_s, 0.0)
    return JobSpec(name, workers, fmt, lanes, slots // 2, seed, heartbeat_limit_s, rejoin_limit_s, chosen, parts)


def usual_lanes(limits: Limits, fmt: JobFormat, workers: int, *, tree: bool) -> int:
    """Lanes of a job that leaves them to the switch: as many as its datagrams take, unless accuracy would suffer."""
    fine = fmt.top(workers) >= FINE
    most_bytes = limits.datagram_bytes if fine else min(limits.datagram_bytes, UDP_PAYLOAD_BYTES_1500)
    most = min(limits.lanes, fmt.max_lanes(workers, most_bytes))
    most -= most % limits.lane_step
    return fmt.tree_lanes(workers, most, limits.datagram_bytes) if tree else most


def usual_window(fmt: JobFormat, workers: int, lanes: int, slots: int, most: int | None = None) -> int:
    """The window of a job that leaves it to a switch with so many slots, a power of two: as many blocks as have the
    bytes of `WINDOW_FRAMES`, or `WINDOW_BYTES` if they are larger; ``most`` if the switch says so."""
    up, down = fmt.encoding(Op.SUM), fmt.result_encoding(Op.SUM, workers)
    size = max(datagram_bytes(up, lanes), datagram_bytes(down, lanes))
    frames = WINDOW_FRAMES * max(UDP_PAYLOAD_BYTES_1500, size) // size
    room = min(slots // 2, max(WINDOW_FRAMES, slots // 2 // SHARES))
    blocks = min(WINDOW_BYTES // size, frames, room, most or room)
    return 1 << (max(1, blocks).bit_length() - 1)


def check_name(name: str) -> None:
    """Raises `ControlError` unless ``name`` can be the name of a job."""
    if len(name) > NAME_CHARS_MAX or not NAME.fullmatch(name):
        # It may be as long as a message: who reads it is told that this is but its beginning.
        cut = f"... (of {len(name):,} characters)" if len(name) > NAME_CHARS_MAX else ""
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"{name[:NAME_CHARS_MAX]!r}{cut} is no name for a job: use 1 to {NAME_CHARS_MAX} letters, digits and "
            "any of ._:/- and begin with a letter or digit",
        )


def _check_limit(name: str, field: str, value: float | None, least: float) -> None:
    # Not ``value < least or ...``: NaN compares false with everything.
    if value is not None and not least <= value <= LIMIT_MAX_S:
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"job {name!r} cannot have {field} {value:g}: choose {least:g} to {LIMIT_MAX_S:g} seconds",
        )


def check_quota(spec: JobSpec, principal: str, mine: Sequence[JobSpec], policy: Policy) -> None:
    """Raise `ControlError` if ``principal``, who has the jobs ``mine``, would have more than a share, or a limit is too
    long."""
    for name in ("heartbeat_limit_s", "rejoin_limit_s"):
        asked, most = getattr(spec, name), getattr(policy, name.replace("_s", "_max_s"))
        if asked is not None and asked > most:
            raise ControlError(
                Code.INVALID_ARGUMENT,
                f"job {spec.name!r} cannot have {name} {asked:g}: this switch takes up to {most:g} seconds",
            )
    slots = sum(job.slots_leased for job in mine)
    who = name_of_principal(principal)
    for quota, asked, what in (
        (policy.quota_jobs, len(mine) + 1, "jobs"),
        (policy.quota_slots, slots + spec.slots_leased, "slots on each shard"),
    ):
        if quota is not None and asked > quota:
            raise ControlError(
                Code.RESOURCE_EXHAUSTED,
                f"no room for job {spec.name!r}: {who} may have {quota} {what} at a time, and would have {asked}; "
                "wait until a job ends (`inagg jobs` lists them), or ask the operator",
            )


def name_of_principal(principal: str) -> str:
    """Words for ``principal`` in an error; empty: callers without a name."""
    return repr(principal) if principal else "whoever has no name of his own"


def check_same(spec: JobSpec, job: JobSpec) -> None:
    """Raise `ControlError` if ``spec`` asks for something else than ``job``, which is there under the same name."""
    if (spec.parts is None) != (job.parts is None):
        return  # said more clearly when the rank's own switch is looked at
    difference = spec.difference(job)
    if difference is not None:
        raise ControlError(
            Code.ALREADY_EXISTS,
            f"job {job.name!r} is there with other parameters: {difference}; give all ranks the same, or this job "
            "another name",
        )


def check_room(spec: JobSpec, jobs: int, most: int) -> None:
    """Raise `ControlError` if there are ``jobs`` already, and the switch keeps no more than ``most``."""
    if jobs >= most:
        raise ControlError(
            Code.RESOURCE_EXHAUSTED,
            f"no room for job {spec.name!r}: this switch keeps {most} jobs; wait until one ends "
            "(`inagg jobs` lists them)",
        )


def no_room(spec: JobSpec, pool: LeasePool, jobs: int) -> ControlError:
    """The refusal of a job for which there is no lease now; it says what would fit."""
    most = pool.largest_free
    total = min(shard.slots for shard in pool.shards)
    asked = f"a window of {spec.window} blocks needs {spec.slots_leased} slots on each shard"
    if spec.slots_leased > total:
        return ControlError(
            Code.INVALID_ARGUMENT,
            f"job {spec.name!r} cannot run here: {asked}, and a shard has {total}; "
            f"the largest window of this switch is {total // 2 // (spec.parts or 1)}",
        )
    if most < 2 * (spec.parts or 1):
        return ControlError(
            Code.RESOURCE_EXHAUSTED,
            f"no room for job {spec.name!r}: {asked}, and all slots are leased by {count_text(jobs, 'job')}; "
            "wait until one ends (`inagg jobs` lists them), or start the switch with more slots (--slots)",
        )
    return ControlError(
        Code.RESOURCE_EXHAUSTED,
        f"no room for job {spec.name!r}: {asked}; the largest window that fits now is "
        f"{most // 2 // (spec.parts or 1)}: ask for that, wait until a job ends (`inagg jobs` lists them), or "
        "start the switch with more slots (--slots)",
    )
