"""Subscribers without a network: whose streams count as what, and what is kept of one that lies behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import ControlError
from inagg_switch.service.subscribers import Subscriber, Subscribers

JOB: Any = SimpleNamespace(number=1, name="job", spec=SimpleNamespace(workers=2))


def left(number: int) -> pb.Event:
    return pb.Event(member_left=pb.MemberLeft(rank=number))


def told(subscriber: Subscriber) -> tuple[list[int], str]:
    """What a stream that has ended still tells: ranks, and the error."""
    ranks = list[int]()

    async def read() -> str:
        try:
            async for event in subscriber.events():
                ranks.append(event.member_left.rank)
        except ControlError as error:
            return str(error)
        return ""

    return ranks, asyncio.run(asyncio.wait_for(read(), 10))


def test_a_stream_that_is_over_counts_no_more_and_nothing_of_it_is_kept() -> None:
    subscribers = Subscribers(Policy(quota_watches=1))
    for _ in range(3):
        one = subscribers.add(JOB, "ann")
        with pytest.raises(ControlError, match="1 stream already"):
            subscribers.add(JOB, "ann")
        for _ in range(2):  # the second time changes nothing
            subscribers.remove(1, one)
    assert subscribers._by_job == {}


def test_streams_of_ranks_and_of_others_are_bounded_apart() -> None:
    """Whoever watches a job keeps no rank from hearing of it, nor the other way round."""
    subscribers = Subscribers(Policy(watchers_per_job_max=1, watches_per_rank=1))
    for member in (0, 101, 102):
        subscribers.add(JOB, member=member)
    with pytest.raises(ControlError, match="has 1 stream already"):
        subscribers.add(JOB)
    with pytest.raises(ControlError, match="has 2 streams already"):
        subscribers.add(JOB, member=103)


def test_of_a_stream_that_lies_behind_no_event_is_kept() -> None:
    subscriber = Subscriber(2)
    for number in range(5):
        subscriber.put(left(number))
    ranks, error = told(subscriber)
    assert ranks == []
    assert error.startswith("this watch lies 2 events behind")


def test_a_stream_that_has_ended_tells_what_came_before_and_nothing_else() -> None:
    subscriber = Subscriber(2)
    subscriber.put(left(1))
    subscriber.end()
    for number in (2, 3, 4):
        subscriber.put(left(number))
    assert told(subscriber) == ([1], "")


def test_streams_end_with_their_job() -> None:
    subscribers = Subscribers(Policy())
    one = subscribers.add(JOB)
    subscribers.put(1, pb.Event(job_ended=pb.JobEnded(text="all have left")))
    assert told(one) == ([0], "")
