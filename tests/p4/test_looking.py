"""What operators see of a P4 switch: `inagg jobs`, `top` and `why`, and the metrics."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from tests.p4.bmv2.switch import Bmv2
from tests.switch.aggregation.world import simple_contribution
from tests.switch.background import LoopThread
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Call, job_spec, join_request

from inagg.cli import COMMANDS, make_root, run
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.binding import Address
from inagg_switch.p4.builds import build
from inagg_switch.p4.p4_driver import P4Driver
from inagg_switch.service.http_server import Listener
from inagg_switch.service.metrics_server import MetricsServer
from inagg_switch.service.security import Security
from inagg_switch.service.server import ControlServer

from .frames import to_switch
from .rig import make_network

WORKERS: tuple[Address, ...] = (("10.77.0.1", 5001), ("10.77.0.2", 5002))


@dataclass
class Serving:
    """A control service over an interpreted switch, which has a job of two ranks."""

    switch: Bmv2
    driver: P4Driver
    server: ControlServer
    loop: LoopThread

    def contribute(self, rank: int, block: int, trailing: bytes = b"") -> None:
        (job,) = self.driver._jobs.values()
        host = self.driver.network.hosts[rank]
        data = simple_contribution(job.binding, rank, block) + trailing
        frame = to_switch(self.driver.network, host, WORKERS[rank], data)
        self.switch.exchange(host.port, frame, 0)

    def command(self, name: str, *arguments: str) -> int:
        """Run a command in this process; its exit status."""
        return run(make_root(COMMANDS), [name, "--switch", self.server.address, *arguments])


@pytest.fixture
def serving() -> Iterator[Serving]:
    chosen, loop = build("nat8-32"), LoopThread()
    switch = Bmv2(chosen)
    driver = P4Driver(switch, chosen, make_network([host for host, _ in WORKERS]), name="bmv2")
    server = ControlServer(driver, "127.0.0.1:0")
    loop.run(server.start(), 10)
    try:
        with MemberClient(server.address) as client:
            spec = job_spec("train", lanes=32)
            addresses = [pb.Address(host=host, port=port) for host, port in WORKERS]
            joins = [join_request(rank, spec, addresses=[addresses[rank]]) for rank in range(2)]
            for call in [Call(partial(client.join, join)) for join in joins]:
                call.result()
            yield Serving(switch, driver, server, loop)
    finally:
        loop.run(server.stop(0), 10)
        loop.close()


def test_why_names_the_rank_that_slots_wait_for(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    serving.contribute(0, 0)
    serving.contribute(0, 1)
    assert serving.command("why", "train", "--over", "0", "--json") == 4
    told = json.loads(capsys.readouterr().out)
    assert [(wait["slot"], wait["missing"]) for wait in told["slots"]] == [(0, [1]), (1, [1])]
    assert "2 slots of the 2 that wait miss rank 1" in told["text"][0]


def test_why_does_not_claim_that_nothing_waits_where_it_cannot_look(
    serving: Serving, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.switch, "slots", lambda first, count: None)  # bmv2 without Thrift, and a Tofino
    serving.contribute(0, 0)
    assert serving.command("why", "train") == 0
    said = capsys.readouterr().out
    assert "Nothing waits" not in said
    assert "whether any wait, and for whom, is not known" in said
    assert "rank 0 1" in said


def test_why_names_the_refusals_that_grow(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    controller = serving.server.controller
    assert controller is not None
    serving.contribute(0, 0)
    serving.loop.run(controller.snapshot(), 5)
    for _ in range(3):
        serving.contribute(1, 0, trailing=bytes(40))  # as a train of segments that nobody has cut
    serving.loop.run(controller.snapshot(), 5)
    serving.command("why", "train", "--over", "0")
    said = " ".join(capsys.readouterr().out.split())
    assert "the switch refused 3 datagrams as trailing_bytes" in said
    assert "gso_max_segs 1" in said


def test_top_shows_the_traffic_and_leaves_out_what_it_cannot_know(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in range(4):
        for rank in range(2):
            serving.contribute(rank, block)
    assert serving.command("top", "--once", "--interval", "0.1") == 0
    said = capsys.readouterr().out.splitlines()
    assert "bmv2, up" in said[0]
    assert said[3].split() == ["0", "0.00", "0.00", "0", "0", "-", "32/1024", "3%", "-"]
    assert serving.command("top", "train", "--once", "--json", "--interval", "0.1") == 0
    look = json.loads(capsys.readouterr().out)
    assert [worker["contributions"] for worker in look["jobs"][0]["workers"]] == [4, 4]
    assert (look["shards"][0]["datagrams_in"], look["shards"][0]["datagrams_out"]) == (8, 8)


def test_jobs_lists_the_job_with_its_lanes(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert serving.command("jobs", "--json") == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["spec"]["name"], job["spec"]["lanes"], job["state"]) == ("train", 32, "running")


def test_metrics_have_the_counters_of_the_program_and_none_of_a_process_that_is_not_ours(serving: Serving) -> None:
    for rank in range(2):
        serving.contribute(rank, 0)
    controller = serving.server.controller
    assert controller is not None

    async def start() -> MetricsServer:
        await controller.snapshot()
        return MetricsServer(Listener("127.0.0.1:0"), controller, lambda: None, Security().secrets())

    server = serving.loop.run(start(), 5)
    try:
        with urllib.request.urlopen(server.url, timeout=5) as reply:
            said = reply.read().decode()
    finally:
        server.close()
    assert 'inagg_job_contributions_total{job="train",rank="1"} 1.0' in said
    assert 'inagg_job_results_total{job="train"} 1.0' in said
    assert 'inagg_shard_sent_datagrams_total{shard="0",switch=""} 2.0' in said
    for unknown in ("cpu_seconds", "kernel_drops", "send_refused", "not_captured"):
        assert f"inagg_shard_{unknown}" not in said
