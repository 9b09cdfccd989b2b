"""What a switch must bear while a job runs on it: hostile calls, killed shards, cut connections, joins and leaves.

In the slow tier; they print what they measured. HOSTILE_CALLS and CHAOS_ROUNDS make them longer or shorter.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.host.membership.proxy import Proxy
from tests.switch.e2e.running import Run, Switch, gradients, slots_leased, until
from tests.switch.e2e.test_leaks import descriptors, resident_bytes

from inagg_host.allreduce import AllReduce
from inagg_proto import PROTOCOL, SECRET_METADATA, SERVICE, bearer
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlClient

HOSTILE_CALLS = int(os.environ.get("HOSTILE_CALLS", "100000"))
CHAOS_ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "100"))
METHODS = ("Create", "DataPlanes", "Join", "Leave", "Heartbeat", "List", "Stats", "Why", "Evict", "Drain", "Nothing")
pytestmark = pytest.mark.slow


class Summing(threading.Thread):
    """A rank that sums its own numbers, `fix32`, and checks every sum, until it is told to stop at a sum."""

    def __init__(self, address: str, rank: int, secret: str | None = None) -> None:
        super().__init__(daemon=True)
        self._address, self._rank, self._secret = address, rank, secret
        self.times_s: list[float] = []
        self.last = 1 << 60
        """The number of the last sum, the same for both."""
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with AllReduce(
                switch=self._address, job="victim", rank=self._rank, workers=2, format="fix32", secret=self._secret
            ) as reduce:
                while len(self.times_s) < self.last:
                    number = len(self.times_s)
                    mine = np.full(100_000, number % 100 + self._rank, np.float32)
                    began_s = time.monotonic()
                    got = reduce(mine)
                    self.times_s.append(time.monotonic() - began_s)
                    np.testing.assert_array_equal(got, 2 * (number % 100) + 1)
        except BaseException as error:
            self.error = error


def finish(ranks: list[Summing]) -> None:
    last = max(len(rank.times_s) for rank in ranks) + 50
    for rank in ranks:
        rank.last = last
    for rank in ranks:
        rank.join(120)
        assert not rank.is_alive()
        if rank.error is not None:
            raise rank.error


def hostile_request(rng: random.Random, method: str) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return pb.CreateRequest(spec=pb.JobSpec(name="x" * rng.randrange(200_000))).SerializeToString()
    if kind == 2:
        name = rng.choice(("victim", "", "\x1b[2J", "[/x]", "nobody", f"flood-{rng.randrange(100)}"))
        spec = pb.JobSpec(
            name=name, workers=rng.choice((0, 1, 2, 33, 1 << 31)), format=rng.choice(("nat8", "fix32", "no", "")),
            window=rng.choice((0, 1, 16, 1 << 31)), heartbeat_limit_s=rng.choice((0.0, float("nan"), 1e300, 5.0)),
        )  # fmt: skip
        return pb.CreateRequest(spec=spec).SerializeToString()
    if kind == 3:
        resume = pb.Resume(
            epoch=rng.getrandbits(32), seed=rng.getrandbits(32), shards=[pb.Position(slots=rng.getrandbits(24))]
        )
        request = pb.JoinRequest(
            name="victim", rank=rng.randrange(3), member=rng.getrandbits(64), resume=resume, protocol=PROTOCOL
        )
        request.addresses.add(host=rng.choice(("", "10.0.0.9", "::1", "nowhere")), port=rng.getrandbits(17))
        return request.SerializeToString()
    if kind == 4:
        return pb.LeaveRequest(
            name="victim", rank=rng.randrange(3), member=rng.getrandbits(64), end=True
        ).SerializeToString()
    return b"" if method not in ("Drain", "Evict") else pb.EvictRequest(name="nobody").SerializeToString()


def attack(address: str, calls: int, seed: int, told: object) -> None:
    """Child process: hostile calls, 200 at a time, some of which are cancelled; then what became of them. They come
    from somebody who knows a secret, else all would be refused alike."""

    async def run() -> Counter[str]:
        rng, outcomes = random.Random(seed), Counter[str]()
        async with grpc.aio.insecure_channel(address) as channel:
            raw: Any = channel  # the stubs of grpc do not know that serializers may be left out
            stubs = {name: raw.unary_unary(f"/{SERVICE}/{name}") for name in METHODS if name != "Drain"}
            watch = raw.unary_stream(f"/{SERVICE}/Watch")

            async def one() -> None:
                method = rng.choice((*stubs, "Watch"))
                data = hostile_request(rng, method)
                if method == "Watch":
                    stream = watch(
                        pb.WatchRequest(name="victim").SerializeToString(),
                        timeout=rng.choice((0.01, 1.0)),
                        metadata=secret,
                    )
                    try:
                        await stream.read()
                        outcomes["OK"] += 1
                    except grpc.aio.AioRpcError as error:
                        outcomes[error.code().name] += 1
                    stream.cancel()
                    return
                try:
                    await stubs[method](data, timeout=rng.choice((0.005, 2.0)), metadata=secret)
                    outcomes["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    outcomes[error.code().name] += 1

            secret = ((SECRET_METADATA, bearer("m-secret")),)
            left = calls

            async def many() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await one()

            await asyncio.gather(*(many() for _ in range(200)))
        return outcomes

    told.send(asyncio.run(run()))  # type: ignore[attr-defined]


def test_a_job_is_exact_and_nothing_is_left_under_hostile_calls(start: Callable[..., Switch], tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("alice: a-secret\nmallory: m-secret\noperator: o-secret\n")
    switch = start("--secret-file", str(tmp_path / "secrets"), "--join-timeout", "5", "--quota-jobs", "50")
    pids = [switch.process.pid, *switch.shard_pids]
    ranks = [Summing(switch.address, rank, "a-secret") for rank in range(2)]
    until(lambda: len(ranks[0].times_s) >= 200 or ranks[0].error)
    host, _, port = switch.address.rpartition(":")
    before, undisturbed = [(resident_bytes(pid), descriptors(pid)) for pid in pids], len(ranks[0].times_s)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        for _ in range(500):  # half open: they say nothing
            stack.enter_context(closing(socket.create_connection((host, int(port)))))
        ours, theirs = context.Pipe()
        attacker = context.Process(target=attack, args=(switch.address, HOSTILE_CALLS, 1, theirs), daemon=True)
        began_s = time.monotonic()
        attacker.start()
        peak = 0
        while not ours.poll(0.2):
            assert attacker.is_alive()
            peak = max(peak, resident_bytes(pids[0]))
        outcomes, taken_s = ours.recv(), time.monotonic() - began_s
        attacker.join()
        disturbed = len(ranks[0].times_s)
    finish(ranks)
    until(lambda: descriptors(pids[0]) <= before[0][1], 60, "descriptors as before")
    with ControlClient(switch.address, Access(secret="o-secret")) as client:
        until(lambda: slots_leased(client) == 0, 60, "the flood's jobs to end")
    after = [(resident_bytes(pid), descriptors(pid)) for pid in pids]
    quiet, loud = (statistics.median(ranks[0].times_s[a:b]) for a, b in ((50, undisturbed), (undisturbed, disturbed)))
    print(f"{HOSTILE_CALLS} calls in {taken_s:.1f} s: {dict(outcomes)}")
    print(f"sums: {disturbed - undisturbed} meanwhile, median {1e3 * loud:.2f} ms, before {1e3 * quiet:.2f} ms")
    print("bytes resident and descriptors (control, shard):", before, after, "peak", peak)
    assert outcomes.total() == HOSTILE_CALLS
    assert not switch.events("job_ended_by_a_bug")
    assert not switch.events("call_failed")
    assert after[0][0] - before[0][0] < 100 << 20


def test_a_job_is_exact_over_killed_shards_cut_connections_and_others_that_come_and_go(
    start: Callable[..., Switch],
) -> None:
    switch = start("--shards", "2", "--shard-restarts", "1000")
    proxy = Proxy(switch.address)
    ranks = [Summing(address, rank) for rank, address in enumerate((proxy.address, switch.address))]
    until(lambda: len(ranks[0].times_s) >= 20)
    control = switch.process.pid
    before = resident_bytes(control), descriptors(control)
    rng, pids, began_s, others = random.Random(3), list(switch.shard_pids), time.monotonic(), 0
    values = gradients(2, [3000], 1)
    for round_number in range(CHAOS_ROUNDS):
        count, restarts = len(ranks[0].times_s), len(switch.events("shard_restarted"))
        shard = rng.randrange(2)
        os.kill(pids[shard], signal.SIGKILL)
        until(partial(lambda n: len(switch.events("shard_restarted")) > n, restarts), what="the shard")
        pids[shard] = switch.events("shard_restarted")[-1]["pid"]
        proxy.kill()
        proxy = Proxy(switch.address, proxy)
        for number in range(3):
            with suppress(Exception):  # one that begins while a shard is dead may be refused
                Run(switch.address, values, job=f"other-{round_number}-{number}").results(60)
                others += 1
        until(partial(lambda n: len(ranks[0].times_s) > n + 3 or ranks[0].error, count), what="the next sums")
    finish(ranks)
    proxy.kill()
    with switch.client() as client:
        until(lambda: slots_leased(client) == 0, 60, "free slots")
    until(lambda: descriptors(control) <= before[1] + 2, 60, "descriptors as before")
    after = resident_bytes(control), descriptors(control)
    print(f"{CHAOS_ROUNDS} kills, {CHAOS_ROUNDS} cuts, {others} other jobs of two joins and leaves each")
    print(f"{len(ranks[0].times_s)} sums of the victim, all exact, in {time.monotonic() - began_s:.0f} s")
    print("control process, bytes resident and descriptors:", before, after)
    assert others == 3 * CHAOS_ROUNDS
    assert not switch.events("job_ended_by_a_bug")
    assert after[0] - before[0] < 100 << 20
