"""The tables of transitions, and that the numbers are those of the service."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from typing import get_args

import pytest

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control import events as ev
from inagg_switch.control.events import Cause
from inagg_switch.control.states import (
    JOB_TRANSITIONS,
    MEMBER_TRANSITIONS,
    JobState,
    JobTrigger,
    MemberState,
    MemberTrigger,
)


@pytest.mark.parametrize("kind", get_args(ev.Event))
def test_an_event_has_the_name_and_fields_of_its_message(kind: type[ev.Event]) -> None:
    message = pb.Event.DESCRIPTOR.fields_by_name[ev.name_of(object.__new__(kind))].message_type
    assert message is not None
    assert message.name == kind.__name__
    assert {field.name for field in fields(kind)} == {field.name for field in message.fields}


def reachable(table: dict[tuple[IntEnum, IntEnum], IntEnum], start: IntEnum) -> set[IntEnum]:
    found = {start}
    while more := {after for (before, _), after in table.items() if before in found} - found:
        found |= more
    return found


def test_a_job_can_reach_every_state_and_can_end_from_every_other() -> None:
    assert reachable(JOB_TRANSITIONS, JobState.JOINING) == set(JobState)  # type: ignore[arg-type]
    for state in set(JobState) - {JobState.ENDING}:
        assert JOB_TRANSITIONS[state, JobTrigger.END] is JobState.ENDING


def test_nothing_leads_out_of_the_end() -> None:
    assert not any(before is JobState.ENDING for before, _ in JOB_TRANSITIONS)


def test_a_member_can_reach_every_state_and_can_leave_from_every_other() -> None:
    assert reachable(MEMBER_TRANSITIONS, MemberState.WAITING) == set(MemberState)  # type: ignore[arg-type]
    for state in set(MemberState) - {MemberState.LEFT}:
        assert MEMBER_TRANSITIONS[state, MemberTrigger.LEAVE] is MemberState.LEFT


def test_a_member_can_join_again_from_every_state_but_out_of_a_running_epoch() -> None:
    joining = {state for state, trigger in MEMBER_TRANSITIONS if trigger is MemberTrigger.JOIN}
    assert joining == set(MemberState) - {MemberState.ACTIVE}


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (JobState, pb.JobState, "JOB_STATE_"),
        (MemberState, pb.MemberState, "MEMBER_STATE_"),
        (Cause, pb.Cause, "CAUSE_"),
    ],
)
def test_the_numbers_are_those_of_the_service(ours: type[IntEnum], theirs: object, prefix: str) -> None:
    items = dict(theirs.items())  # type: ignore[attr-defined]
    assert items.pop(f"{prefix}UNSPECIFIED") == 0
    assert items == {prefix + member.name: member.value for member in ours}
