"""The reason why a job waits: all that is known of it, in sentences, the likeliest cause first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..driver import SlotWait
from ..text import count_text, ranks_text, seconds_text
from .jobs import Job
from .members import Member
from .states import WATCHED, JobState, MemberState


@dataclass(frozen=True, slots=True)
class RankWait:
    """One rank that slots wait for; `slots` counts those that were looked at."""

    rank: int
    slots: int
    longest_s: float
    silent_s: float
    contributions: int
    last_contribution_s: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sentences, and the ranks that slots wait for, the longest wait first."""

    text: tuple[str, ...]
    ranks: tuple[RankWait, ...]


def explain(
    job: Job,
    now: float,
    slots_waiting: int | None,
    waits: Sequence[tuple[int, SlotWait]],
    unanswered: Mapping[str, int] | None = None,
    *,
    window: int | None = None,
    refusals: Iterable[str] = (),
    silent: Iterable[str] = (),
) -> Explanation:
    """Explain why ``job`` waits. ``waits`` are (shard, slot): of ``slots_waiting`` slots those that wait longest; None:
    the switch does not tell. ``unanswered``: by switch of a tree, slots whose sum has gone up and has no answer.
    ``window``: what the switch takes at once, in blocks, if that is little; ``refusals``: what is known of datagrams
    that it refuses (`drops`); ``silent``: which of its data planes do not answer, in words."""
    ranks = rank_waits(job, now, waits)
    text = [
        f"{trouble[:1].upper()}{trouble[1:]}: its slots are not known here, and its sums do not come."
        for trouble in silent
    ]
    if job.state is JobState.RUNNING:
        text += _unanswered(job, unanswered or {}) if not ranks else []
        text += _running(job, now, slots_waiting, ranks) if ranks or not text else []
        if slots_waiting != 0:
            text += refusals
            text += _bursts(job, window)
    elif job.state is JobState.BINDING:
        text.append(f"All {count_text(job.spec.workers, 'rank')} have joined; the data planes are being set up.")
    else:
        text += _joining(job, now)
    text += _silent(job, now)
    return Explanation(tuple(text), ranks)


def rank_waits(job: Job, now: float, waits: Sequence[tuple[int, SlotWait]]) -> tuple[RankWait, ...]:
    """The ranks that ``waits`` miss, the longest wait first."""
    found = []
    for rank, progress in enumerate(job.watching.progress):
        mine = [wait.waiting_s for _, wait in waits if rank in wait.missing]
        if mine:
            member = job.roster.by_rank.get(rank)
            silent_s = member.silent_s(now) if member is not None else 0.0
            found.append(RankWait(rank, len(mine), max(mine), silent_s, progress.contributions, progress.since(now)))
    return tuple(sorted(found, key=lambda wait: -wait.longest_s))


def _unanswered(job: Job, unanswered: Mapping[str, int]) -> list[str]:
    placed = job.roster.placed
    return [
        f"At switch {name!r}, where {ranks_text(placed.get(name, ()))} joined, {count_text(count, 'sum')} went up "
        "and had no answer yet: if that stays so, look at the way between the switches."
        for name, count in sorted(unanswered.items())
    ]


def _running(job: Job, now: float, slots_waiting: int | None, ranks: Sequence[RankWait]) -> list[str]:
    if slots_waiting is None:
        return _contributions(job, now)
    if not slots_waiting:
        return [_nothing_waits(job, now)]
    text = []
    for wait in ranks:
        took = (
            "the switch has taken no contribution of it yet"
            if wait.last_contribution_s is None
            else f"the switch last took a contribution of it {seconds_text(wait.last_contribution_s)} ago"
        )
        text.append(
            f"{count_text(wait.slots, 'slot')} of the {slots_waiting} that wait miss rank {wait.rank}"
            f"{_behind(job.roster.by_rank.get(wait.rank))}, the oldest for "
            f"{seconds_text(wait.longest_s)}; {took}. {_whereabouts(job, job.roster.by_rank.get(wait.rank), now)}"
        )
    return text


_DOCTOR = "`inagg doctor` on a rank's host tries whether UDP passes, which a firewall may stop where TCP passes"


def _nothing_waits(job: Job, now: float) -> str:
    """A path that loses all datagrams of all ranks, such as one with a small MTU, looks like this as well; it is not
    suspected once more has come of a rank than it may send before it has a result. For ranks too, whose time limit has
    passed."""
    progress = job.watching.progress
    silent = [rank for rank, of_rank in enumerate(progress) if not of_rank.contributions]
    if any(progress[rank].heard_at is not None for rank in silent):
        return (
            f"Nothing waits, and no contribution of {ranks_text(silent)} has come yet, though datagrams have, which "
            "were refused (see drops in `inagg top`)."
        )
    if silent:
        return (
            f"Nothing waits, and nothing of {ranks_text(silent)} has come yet (if they do not compute still, it does "
            f"not arrive: {_DOCTOR})."
        )
    repeating = [rank for rank, of_rank in enumerate(progress) if of_rank.repeats(now)]
    if repeating:
        unanswered = job.spec.window * len(job.leases)
        had_results = all(progress[rank].contributions > unanswered for rank in repeating)
        hint = "" if had_results else f" ({_DOCTOR})"
        return (
            f"Nothing waits, but what the sums have already comes again from {ranks_text(repeating)}: the results may "
            f"not arrive there{hint}."
        )
    return "Nothing waits: all that came is summed; the ranks compute, or have finished."


def _bursts(job: Job, window: int | None) -> list[str]:
    if window is None or job.spec.window <= window:
        return []
    return [
        f"This switch takes bursts of some {2 * window} datagrams a port (bmv2 reads interfaces through the ring of "
        f"libpcap) and loses the rest without a word. This job has a window of {job.spec.window} blocks, so what is "
        f"lost comes again only after time-outs: leave the window to the switch, or take INAGG_WINDOW={window}."
    ]


def _behind(member: Member | None) -> str:
    """Words on the switch of a tree by which a rank has joined; empty if there is none."""
    return f" at switch {member.request.switch!r}" if member is not None and member.request.switch else ""


def _contributions(job: Job, now: float) -> list[str]:
    """Sentences on a job whose slots are not known."""
    told = [
        f"rank {rank} {progress.contributions}"
        + ("" if (since := progress.since(now)) is None else f", the last {seconds_text(since)} ago")
        for rank, progress in enumerate(job.watching.progress)
    ]
    return [
        "This switch does not tell what its slots hold (bmv2 does, if `inagg switch` has --thrift), so whether any "
        "wait, and for whom, is not known.",
        f"Contributions so far: {'; '.join(told)}. A rank that has fewer than the others and sends none is the one "
        "that they wait for.",
    ]


def _whereabouts(job: Job, member: Member | None, now: float) -> str:
    if member is None or member.state is MemberState.LEFT:
        return "It has left the job, so these slots will wait for ever: end the job on the other ranks."
    if member.silent_s(now) > 2 * job.roster.heartbeat_interval_s:
        return "Its heartbeats have stopped as well: its process or its machine is gone, stopped, or cut off."
    where = "see drops in `inagg top`"
    if job.watching.progress[member.rank].heard_at is None:  # not even one that was refused
        where = _DOCTOR
    return (
        "It heart-beats, so its process lives: it computes, waits for something else, or its datagrams do not arrive "
        f"({where})."
    )


def _joining(job: Job, now: float) -> list[str]:
    missing = job.roster.missing()
    cut_off = _cut_off(job, now)
    behind = {rank for ranks in cut_off.values() for rank in ranks}
    failed = [m.rank for m in job.roster if m.state is MemberState.FAILED and m.rank not in behind]
    left = [m.rank for m in job.roster if m.state is MemberState.LEFT]
    between = [m.rank for m in job.roster if m.state is MemberState.BETWEEN and m.rank not in behind]
    again = " again" if job.has_run else ""
    text = [f"The job waits for {ranks_text(missing)} of {job.spec.workers} to join{again}."]
    if job.epochs.last_end:
        text.append(f"Epoch {job.epochs.number} ended: {job.epochs.last_end}.")
    for name, ranks in sorted(cut_off.items()):
        text.append(
            f"Cut off: {ranks_text(ranks)}, who joined at switch {name!r}, which is not back in the tree: start it "
            "again, or name another switch in their INAGG_SWITCH."
        )
    if failed:
        text.append(f"Silent for too long: {ranks_text(failed)}; look whether those processes still run.")
    if left:
        text.append(f"Left: {ranks_text(left)}.")
    if between:
        text.append(f"Alive, but has not called Join yet: {ranks_text(between)}.")
    if job.grace.ends_at is not None:
        text.append(f"The job ends in {seconds_text(max(0.0, job.grace.ends_at - now))} if they do not come.")
    return text


def _cut_off(job: Job, now: float) -> dict[str, list[int]]:
    """Ranks that joined at a switch that has gone and have not been heard since, by switch: their processes may
    live."""
    ranks: dict[str, list[int]] = {}
    for member in job.roster:
        between = member.state is MemberState.BETWEEN and member.silent_s(now) > 2 * job.roster.heartbeat_interval_s
        if (between or member.state is MemberState.FAILED) and not job.has_switch_of(member):
            ranks.setdefault(member.request.switch, []).append(member.rank)
    return ranks


def _silent(job: Job, now: float) -> list[str]:
    return [
        f"Rank {member.rank} was last heard {seconds_text(member.silent_s(now))} ago; after "
        f"{seconds_text(job.roster.heartbeat_limit_s)} it counts as failed."
        for member in job.roster
        if member.state in WATCHED and member.silent_s(now) > 2 * job.roster.heartbeat_interval_s
    ]
