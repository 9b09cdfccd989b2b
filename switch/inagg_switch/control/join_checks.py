"""Whether a process may be the rank that it claims, whether the switch can serve it where it is, and whether what it
brings fits its job and the other ranks.

Results must have the same bits as in a run that was never disturbed. The switch's noise is a function of seed, place
in the lease and generation, wherever the lease lies (`inagg_wire.noise_keys.seed_for_lease`); so the seed and the size
of the lease must be what they were. And every block from the smallest that any rank needs must still be at hand with
every rank: see `check_together`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..binding import Address
from ..text import ranks_text, seconds_text
from .admission import JobSpec
from .members import JoinRequest
from .policy import EPOCH_MAX
from .refusals import Code, ControlError
from .roster import Roster
from .states import JobState, MemberState

START_ANEW = "start all ranks anew without what they bring, or give the new run another name"


def _unfit(spec: JobSpec, rank: int, why: str) -> ControlError:
    return ControlError(
        Code.FAILED_PRECONDITION, f"rank {rank} cannot go on with job {spec.name!r}: {why}; {START_ANEW}"
    )


def check_rank(spec: JobSpec, request: JoinRequest) -> None:
    """Raises `ControlError` if the job has no such rank."""
    if request.rank >= spec.workers:
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"rank {request.rank} cannot join job {spec.name!r}, which has ranks 0 to {spec.workers - 1}",
        )


def check_served(
    spec: JobSpec,
    roster: Roster,
    request: JoinRequest,
    admit: Callable[[Sequence[tuple[Address, ...]]], str | None],
) -> None:
    """Raises `ControlError` if the switch cannot serve the rank where it is, with those that wait already: what does
    not fit is told to the first whom it concerns, not to all when the last has come. ``admit``: as `Driver.admit`."""
    if spec.parts is not None:
        return  # the switch that it talks to is asked when all have come
    if request.switch:
        raise ControlError(
            Code.FAILED_PRECONDITION,
            f"rank {request.rank} cannot join job {spec.name!r} through switch {request.switch!r}: a rank of it has "
            "joined at the root. All ranks of a job join at leaves of a tree, or all at its root",
        )
    others = [member.request.addresses for member in roster.waiting() if member.rank != request.rank]
    why = admit([*others, request.addresses])
    if why is not None:
        raise ControlError(
            Code.FAILED_PRECONDITION, f"rank {request.rank} cannot join job {spec.name!r} from here: {why}"
        )


def check_claimant(spec: JobSpec, state: JobState, roster: Roster, request: JoinRequest, now: float) -> None:
    """Raises `ControlError` if another living process is the rank, or the process is another rank, or the rank has
    left a job that still runs. A process may have several member numbers, one after the other, so it may be itself that
    is in the way."""
    for other in roster:
        if other.rank != request.rank and other.request.member == request.member and other.alive:
            raise ControlError(
                Code.ALREADY_EXISTS,
                f"this process is rank {other.rank} of job {spec.name!r} already and asks to be rank {request.rank}: "
                "give each process one rank and a member number of its own",
            )
    member = roster.by_rank.get(request.rank)
    if member is None:
        return
    if member.alive and member.request.member != request.member:
        silent_s = member.silent_s(now)
        doing = (
            "waits for the other ranks to join"
            if member.ticket is not None
            else f"was heard {seconds_text(silent_s)} ago; if it is gone, try again in "
            f"{seconds_text(max(0.0, roster.heartbeat_limit_s - silent_s))}, when its heartbeat limit has passed"
        )
        raise ControlError(
            Code.ALREADY_EXISTS,
            f"rank {request.rank} of job {spec.name!r} is taken by another process, or by an AllReduce or process "
            f"group of this one that is not closed, which {doing}; else close it, or give this process another rank, "
            "or its job another name",
        )
    if state is JobState.RUNNING and member.state is MemberState.LEFT:
        here = ranks_text(other.rank for other in roster if other.alive)
        raise ControlError(
            Code.FAILED_PRECONDITION,
            f"rank {request.rank} has left job {spec.name!r}, which still runs with {here}: wait until it ends, or "
            "give the new run another name",
        )


def check_history(spec: JobSpec, epoch: int, shards: int, request: JoinRequest, *, adopt: bool) -> None:
    """Raises `ControlError` unless what ``request`` brings is of this job.

    ``epoch`` is the job's; 0: it has not run on this switch, which has restarted, perhaps. Then ranks may bring
    different epochs, since not all may have heard of the last one. ``shards``: how many this switch has.
    ``adopt``: the job will take over the seed that the rank brings, so only one that the user has fixed must agree.
    """
    brought = request.resume
    if brought is None:
        return
    if not 1 <= brought.epoch <= EPOCH_MAX:
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"rank {request.rank} of job {spec.name!r} brings epoch {brought.epoch}: epochs are numbered from 1",
        )
    if len(brought.shards) != shards:
        raise _unfit(spec, request.rank, f"it brings {len(brought.shards)} shards, and this switch has {shards}")
    if any(position.slots != spec.slots for position in brought.shards):
        raise _unfit(spec, request.rank, f"it brings a lease of another size than the {spec.slots} slots of this job")
    if brought.seed != spec.seed and not (adopt and "seed" in spec.chosen):
        raise _unfit(spec, request.rank, f"it brings seed {brought.seed}, and the job has {spec.seed}")
    if epoch and brought.epoch > epoch:
        raise _unfit(spec, request.rank, f"it brings epoch {brought.epoch}, and the job has only had {epoch}")


def check_together(spec: JobSpec, request: JoinRequest, others: Sequence[JoinRequest]) -> None:
    """Raises `ControlError` unless ``request`` can go on together with ``others``, who wait already.

    Blocks that ranks of one run still need lie within a window P: a rank that lacks the result of block a has not
    sent a + P, so no rank has the result of a + P. As hosts keep the datagrams of their last 2P blocks, all can
    send again from the smallest. What lies further apart is not of one run. A process that begins with nothing
    (no `resume`) may compute other gradients than its predecessor, whose sums the others have used: so it can join
    only ranks that have no result yet either, be it of a block after one that was lost.
    """
    for other in others:
        for new, old in ((request, other), (other, request)):
            if new.resume is None and not old.starts_anew:
                raise ControlError(
                    Code.FAILED_PRECONDITION,
                    f"rank {new.rank} of job {spec.name!r} starts anew and rank {old.rank} has results already, of "
                    f"what another process sent as rank {new.rank}: they cannot work together; {START_ANEW}",
                )
        for shard in range(len(request.addresses)):
            mine, its = request.next_block(shard), other.next_block(shard)
            if abs(mine - its) > spec.window:
                raise ControlError(
                    Code.FAILED_PRECONDITION,
                    f"rank {request.rank} of job {spec.name!r} needs block {mine} of shard {shard} and rank "
                    f"{other.rank} block {its}: more than the window of {spec.window} blocks apart, so they are "
                    f"not of one run; {START_ANEW}",
                )


def check_addresses(spec: JobSpec, request: JoinRequest, others: Sequence[JoinRequest]) -> None:
    """Raises `ControlError` if another rank of the job gave one of ``request``'s addresses for the same shard."""
    for other in others:
        for shard, (mine, its) in enumerate(zip(request.addresses, other.addresses, strict=True)):
            if mine == its:
                raise ControlError(
                    Code.INVALID_ARGUMENT,
                    f"ranks {request.rank} and {other.rank} of job {spec.name!r} both give the address "
                    f"{mine[0]} port {mine[1]} for shard {shard}: give each rank a socket of its own",
                )
