"""The states of a job and of a member, and the transitions between them, as data.

A transition that the table does not have raises KeyError: it is a bug here, never a caller's fault.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class JobState(IntEnum):
    """States of a job. The numbers are those of `inagg.v1.JobState`."""

    JOINING = 1  # not all ranks have joined
    BINDING = 2  # all have; the data planes are being told
    RUNNING = 3
    ENDING = 4  # over; the data planes are being told


class JobTrigger(IntEnum):
    """Events that change the state of a job."""

    FULL = 1  # the last rank joined
    BOUND = 2  # the data planes are ready
    BREAK = 3  # the epoch, or its preparation, is over
    END = 4


class MemberState(IntEnum):
    """States of a rank. The numbers are those of `inagg.v1.MemberState`."""

    WAITING = 1  # in the barrier
    ACTIVE = 2  # in the running epoch
    BETWEEN = 3  # its epoch ended, and it has not joined again yet
    FAILED = 4  # silent for too long
    LEFT = 5


class MemberTrigger(IntEnum):
    """Events that change the state of a member."""

    JOIN = 1
    ADMIT = 2  # the barrier opened
    BREAK = 3  # the epoch is over
    GIVE_UP = 4  # its Join was cancelled or took too long
    SILENCE = 5
    LEAVE = 6


JOB_TRANSITIONS: Final = {
    (JobState.JOINING, JobTrigger.FULL): JobState.BINDING,
    (JobState.BINDING, JobTrigger.BOUND): JobState.RUNNING,
    (JobState.BINDING, JobTrigger.BREAK): JobState.JOINING,
    (JobState.RUNNING, JobTrigger.BREAK): JobState.JOINING,
    (JobState.JOINING, JobTrigger.END): JobState.ENDING,
    (JobState.BINDING, JobTrigger.END): JobState.ENDING,
    (JobState.RUNNING, JobTrigger.END): JobState.ENDING,
}

MEMBER_TRANSITIONS: Final = {
    (MemberState.WAITING, MemberTrigger.JOIN): MemberState.WAITING,  # the call is repeated
    (MemberState.BETWEEN, MemberTrigger.JOIN): MemberState.WAITING,
    (MemberState.FAILED, MemberTrigger.JOIN): MemberState.WAITING,
    (MemberState.LEFT, MemberTrigger.JOIN): MemberState.WAITING,
    (MemberState.WAITING, MemberTrigger.ADMIT): MemberState.ACTIVE,
    (MemberState.ACTIVE, MemberTrigger.BREAK): MemberState.BETWEEN,
    (MemberState.WAITING, MemberTrigger.GIVE_UP): MemberState.BETWEEN,
    (MemberState.ACTIVE, MemberTrigger.SILENCE): MemberState.FAILED,
    (MemberState.BETWEEN, MemberTrigger.SILENCE): MemberState.FAILED,
    (MemberState.WAITING, MemberTrigger.LEAVE): MemberState.LEFT,
    (MemberState.ACTIVE, MemberTrigger.LEAVE): MemberState.LEFT,
    (MemberState.BETWEEN, MemberTrigger.LEAVE): MemberState.LEFT,
    (MemberState.FAILED, MemberTrigger.LEAVE): MemberState.LEFT,
}

ALIVE: Final = frozenset({MemberState.WAITING, MemberState.ACTIVE, MemberState.BETWEEN})
"""States of a member whose process is taken to be there, so that no other may claim its rank."""

WATCHED: Final = frozenset({MemberState.ACTIVE, MemberState.BETWEEN})
"""States in which a member must heart-beat. One that waits need not: its open call is its sign of life."""

assert {state for state, trigger in MEMBER_TRANSITIONS if trigger is MemberTrigger.SILENCE} == WATCHED
