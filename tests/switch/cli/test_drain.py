"""A control plane that drains: running jobs go on, nothing new begins."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from tests.switch.control.world import World, resume, spec
from tests.switch.service.serving import Serving, job_spec

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.events import Cause
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.service.control_client import ControlCallError


def test_a_new_job_is_refused_and_told_where_to_go(serve: Callable[..., Serving]) -> None:
    serving = serve()
    serving.join_all(job_spec("train"))
    serving.loop.run(serving.server.drain(), 5)
    assert not serving.client.healthy()
    with pytest.raises(ControlCallError, match="use another switch") as refused:
        serving.client.create(job_spec("late"))
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    assert not serving.client.create(job_spec("train")).created
    assert serving.client.list().draining
    assert serving.client.stats().draining
    assert serving.beat(0, "train").state == pb.JOB_STATE_RUNNING


def test_ranks_of_a_job_that_has_run_may_come_back() -> None:
    world = World()
    for rank in range(2):
        world.join(rank, spec("train"))
    epoch = world.epochs[max(world.epochs)]
    world.registry.refuse_new(world.now)
    for rank in range(2):
        world.join(rank, "train", brings=resume(epoch, 0))
    assert world.epochs[max(world.epochs)].epoch == epoch.epoch + 1


def test_a_job_that_waits_for_its_first_ranks_ends() -> None:
    world = World()
    ticket = world.join(0, spec("early"))
    world.registry.refuse_new(world.now)
    world.pump()
    assert world.errors[ticket].code is Code.UNAVAILABLE
    assert not world.registry.jobs
    assert world.registry.jobs.past.jobs[-1].cause is Cause.NEVER_STARTED
    with pytest.raises(ControlError, match="takes no new jobs now"):
        world.registry.create(world.now, spec("early"))


def test_why_it_stops_is_told_to_those_who_wait(serve: Callable[..., Serving]) -> None:
    serving = serve()
    waiting = serving.join_later(0, job_spec("train"))
    serving.waiting(0, name="train")
    serving.loop.run(serving.server.stop(1.0, "shard 3 has died"), 5)
    with pytest.raises(ControlCallError, match=r"shard 3 has died: join again, bringing what you had"):
        waiting.result()
