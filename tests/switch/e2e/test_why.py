"""A worker that vanishes: `inagg why` says so at once, the watch stream within the heartbeat limit."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.switch.e2e.running import Rank, Switch, gradients, until, worker

from inagg_host.allreduce import AllReduceError
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.control_client import ControlCallError

HEARTBEAT_LIMIT_S = 2.0


class Watched(threading.Thread):
    """The watch stream of a job, with the times at which its events came."""

    def __init__(self, switch: Switch, job: str) -> None:
        super().__init__(daemon=True)
        self._switch, self._job = switch, job
        self.events: list[tuple[float, pb.Event]] = []
        self.start()

    def run(self) -> None:
        with self._switch.client() as client, suppress(ControlCallError):
            for event in client.watch(self._job):
                self.events.append((time.monotonic(), event))

    def failed(self) -> tuple[float, pb.MemberFailed] | None:
        """When and which member was given up."""
        found = [(at, event.member_failed) for at, event in self.events if event.HasField("member_failed")]
        return found[0] if found else None


def test_why_names_a_worker_that_vanished_before_the_watch_stream_does(start: Callable[..., Switch]) -> None:
    switch = start("--heartbeat-limit", str(HEARTBEAT_LIMIT_S), "--rejoin-limit", "0.2", "--poll-interval", "0.2")
    endless = itertools.repeat(gradients(1, [20_000], 1)[0][0])
    others = [Rank(endless, switch=switch.address, job="train", rank=rank, workers=3) for rank in (0, 2)]
    with worker(switch.address, "train", [1], 3) as victim:
        assert victim.has_summed()
        watched = Watched(switch, "train")
        until(lambda: watched.events)
        moving = switch.command("why", "train", "--over", "5")
        assert (moving.returncode, watched.failed()) == (0, None)
        killed_at = time.monotonic()
        victim.kill()

    asked = switch.command("why", "train", "--json", "--over", "0.05")
    assert watched.failed() is None, "the question came too late for this test"
    answer = json.loads(asked.stdout)
    assert (asked.returncode, answer["verdict"]) == (4, "waits")
    assert [wait["rank"] for wait in answer["ranks"]] == [1]
    assert all(wait["missing"] == [1] for wait in answer["slots"])
    assert answer["slots"][0]["waiting_s"] <= time.monotonic() - killed_at

    until(watched.failed, HEARTBEAT_LIMIT_S + 1)
    at, failed = watched.failed() or (0.0, pb.MemberFailed())
    # It heart-beat a quarter of the limit before it was killed, at most; the switch looks ten times a second.
    assert at - killed_at < HEARTBEAT_LIMIT_S + 0.5
    assert failed.rank == 1
    assert failed.contributions > 0
    assert failed.slots_waiting > 0
    for rank in others:
        with pytest.raises(AllReduceError, match="rank 1"):
            rank.result()
    over = switch.command("why", "train")
    assert over.returncode == 3
    assert "rank 1 did not come back" in over.stdout
