"""How training ends, well or not: nothing hangs, nothing is left, and the switch knows."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import LARGE
from tests.host.torch.world import World
from torch._C._distributed_c10d import HashStore

from inagg_host.allreduce import AllReduceError
from inagg_host.torch import Options, exact
from inagg_host.torch.job import GroupJob
from inagg_host.torch.jobs import GroupJobs
from inagg_switch.service.control_client import ControlClient

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "tests" / "host" / "torch" / "script.py"
PATIENCE_S = 60.0
INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)


@dataclass
class Rank:
    """A process of the script."""

    process: subprocess.Popen[str]

    def until(self, words: str) -> str:
        """Read lines until one has ``words``; that one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return line
        raise AssertionError(f"ended without saying {words!r}: {self.end()}")

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, the rest of stdout, stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@contextmanager
def running(*command: str, **environment: str) -> Iterator[Rank]:
    """A process that is killed if the test fails."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield Rank(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def two_ranks(switch: str, mode: str, **environment: str) -> Iterator[list[Rank]]:
    """Ranks 0 and 1 of the script."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    shared = {
        "INAGG_SWITCH": switch, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", **environment,
    }  # fmt: skip
    with (
        running(str(SCRIPT), mode, RANK="0", **shared) as first,
        running(str(SCRIPT), mode, RANK="1", **shared) as second,
    ):
        yield [first, second]


def jobs(switch: str) -> list[str]:
    """Names of the jobs that run."""
    with ControlClient(switch) as client:
        return [job.spec.name for job in client.list().jobs]


def gone(switch: str, before: list[str]) -> bool:
    """Whether all jobs that are not among ``before`` end soon."""
    give_up_s = time.monotonic() + 10
    while set(jobs(switch)) - set(before):
        if time.monotonic() > give_up_s:
            return False
        time.sleep(0.05)
    return True


# --- well ---


def test_torchrun_trains_and_leaves_nothing(switch: str) -> None:
    before = jobs(switch)
    arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), "train")
    with running(*arguments, INAGG_SWITCH=switch, INAGG_SUMMARY="1") as launcher:
        code, out, err = launcher.end()
    assert code == 0, err
    results = [line.partition(" ends with ")[2] for line in out.splitlines() if " ends with " in line]
    assert len(results) == 2
    assert results[0] == results[1]
    assert float(results[0].split()[-1]) > 0.9
    assert err.count("tensors") == err.count("through the inner group") == 2, err
    assert set(jobs(switch)) <= set(before)


def threads_and_files(collect: bool = True) -> tuple[list[str], list[str]]:
    """Of this process: names of threads (of Python and of others), and what its file descriptors are."""
    if collect:
        gc.collect()
    tasks = [(Path("/proc/self/task") / task / "comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    names = sorted([thread.name for thread in threading.enumerate()] + tasks)
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0])
        except FileNotFoundError:
            continue  # that of the listing itself
    return names, sorted(files)


def come_and_go(times: int) -> list[tuple[list[str], list[str]]]:
    """What there is before, and after each time that a group was made, used and destroyed."""
    found = [threads_and_files()]
    for _ in range(times):
        group = dist.new_group(backend="inagg", pg_options=Options(window=16))
        work = dist.all_reduce(torch.ones(LARGE), group=group, async_op=True)
        work.get_future().then(lambda done: done.value()).wait()
        dist.all_reduce(torch.ones(1), group=group)
        dist.barrier(group)
        dist.destroy_process_group(group)
        del group, work
        dist.barrier()
        found.append(threads_and_files())
    return found


def test_a_destroyed_group_leaves_no_thread_and_no_socket(beside: World) -> None:
    """The first one starts what gRPC and Gloo keep for the process."""
    for found in beside.run(come_and_go, 5):
        (before, *threads), (_, *files) = zip(*found, strict=True)
        # Jobs of other tests here, whose hooks are gone, may still be on their way out, and what does that stays.
        ours = Counter(name for name in threads[-1] if name.startswith("inagg") and name != "inagg-leave")
        assert not ours - Counter(before)
        assert len(threads[-1]) <= max(len(threads[1]), len(before)), (threads[1], threads[-1])
        assert len(files[-1]) <= len(files[1]), (files[1], files[-1])


def gloo_threads() -> int:
    return sum("gloo" in name for name in threads_and_files(collect=False)[0])


def come_and_go_uncollected(times: int) -> list[int]:
    """How many threads of Gloo there are after each time that a group was made, used and destroyed."""
    found = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            group = dist.new_group(backend="inagg", pg_options=Options(window=16))
            dist.all_reduce(torch.ones(LARGE), group=group)
            dist.destroy_process_group(group)
            del group
            dist.barrier()
            found.append(gloo_threads())
            give_up_s = time.monotonic() + PATIENCE_S / 6
            while found[-1] > found[0] and time.monotonic() < give_up_s:  # a thread of ours may still let it go
                time.sleep(0.01)
                found[-1] = gloo_threads()
    finally:
        gc.enable()
    return found


def test_a_destroyed_group_ends_its_inner_group_at_once(beside: World) -> None:
    """And not when the garbage collector comes by."""
    for first, *others in beside.run(come_and_go_uncollected, 3):
        assert max(others) <= first, others


# --- not so well ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raise", "finally"])
def test_an_error_on_one_rank_is_raised_on_the_others_and_names_it(switch: str, mode: str) -> None:
    """Also if the group is destroyed while the error passes by."""
    before = jobs(switch)
    with two_ranks(switch, mode) as (other, failing):
        told = other.until("was told")
        assert "rank 1" in told
        assert "UserError: a mistake of the user" in told
        assert other.end()[0] == 1
        code, _, err = failing.end()
        assert code == 1
        assert "UserError" in err
        assert "Exception ignored" not in err
    assert gone(switch, before)


def test_an_error_with_sums_in_flight_is_raised_on_the_other_ranks(switch: str) -> None:
    with two_ranks(switch, "pending") as (other, failing):
        assert "with something in flight" in other.until("was told")
        code, out, err = failing.end()
        assert code == 1
        assert "never comes here" not in out
        assert "Exception ignored" not in err, err


@pytest.mark.slow
def test_a_killed_rank_is_noticed_within_the_groups_timeout(switch: str) -> None:
    with two_ranks(switch, "kill", GROUP_TIMEOUT_S="6") as (other, killed):
        assert killed.end()[0] == -signal.SIGKILL
        start_s = time.monotonic()
        assert "rank 1" in other.until("was told")
        assert time.monotonic() - start_s < 12
        assert other.end()[0] == 1


@pytest.mark.slow  # on a busy machine torch may take the signal late, and then the ranks end with their time limit
def test_ctrl_c_ends_all_ranks_and_their_job(switch: str) -> None:
    """Rank 1 is computing (asleep, here), rank 0 waits for it inside of a backward pass."""
    before = jobs(switch)
    with two_ranks(switch, "sleep") as ranks:
        for rank in ranks:
            rank.until("has trained")
        time.sleep(0.5)
        for rank in ranks:
            rank.process.send_signal(signal.SIGINT)
        ends = [rank.end() for rank in ranks]
    for code, _, err in ends:
        assert code in INTERRUPTED, err
        assert "KeyboardInterrupt" in err
        assert "Exception ignored" not in err, err
    assert gone(switch, before)


def test_no_switch_is_said_at_once_and_by_name() -> None:
    limit = timedelta(seconds=0.5)
    job = GroupJob({"switch": "127.0.0.1:9"}, 0, 2, limit, "world", lambda data: [data] * 2, HashStore())
    with pytest.raises(AllReduceError, match=r"cannot reach the switch at 127\.0\.0\.1:9: is `inagg switch` running"):
        job.join()
    with pytest.raises(AllReduceError, match="cannot reach"):
        job.sum(torch.ones(LARGE)).wait()
    job.close()


def test_a_rank_without_a_way_to_the_switch_is_named_to_the_others(switch: str) -> None:
    store, meeting, said = HashStore(), threading.Barrier(2), [b"", b""]

    def join(rank: int, address: str) -> str:
        def gather(data: bytes) -> list[bytes]:
            said[rank] = data
            meeting.wait(PATIENCE_S)
            everyone = list(said)
            meeting.wait(PATIENCE_S)
            return everyone

        options = {"switch": address, "reconnect_s": 0.1}
        job = GroupJob(options, rank, 2, timedelta(seconds=PATIENCE_S), "world", gather, store)
        with pytest.raises(AllReduceError) as told:
            job.join()
        return str(told.value)

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(join, range(2), (switch, "127.0.0.1:9"))
    assert second.startswith("cannot reach the switch at 127.0.0.1:9")
    assert first == f"rank 1 cannot join: {second}"


@pytest.mark.parametrize(
    ("code", "why"), [(0, "all ranks have left job"), (None, "all ranks have left job"), (3, "SystemExit: 3")]
)
def test_a_script_that_ends_well_within_a_block_has_not_failed(switch: str, code: int | None, why: str) -> None:
    store, met, name = HashStore(), threading.Barrier(2), f"exit-{code}-{os.getpid()}"

    def run(rank: int) -> None:
        job = make_job(switch, rank, store, lambda data: [data if data.startswith(b"{") else name.encode()] * 2)
        job.join()
        met.wait(PATIENCE_S)
        try:
            sys.exit(code)
        except SystemExit:
            job.close()

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(run, range(2)))
    with ControlClient(switch) as client:
        (ended,) = [job for job in client.list().ended if job.name == name]
    assert why in ended.text


# --- while a rank joins ---


def make_job(switch: str, rank: int, store: HashStore, gather: Callable[[bytes], list[bytes]]) -> GroupJob:
    return GroupJob({"switch": switch}, rank, 2, timedelta(seconds=PATIENCE_S / 2), "world", gather, store)


def wait_until(there: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("end", "why"),
    [(GroupJob.abort, "RuntimeError: its process group was aborted"), (GroupJob.close, "its job was closed")],
    ids=["aborted", "closed"],
)
def test_a_rank_that_waits_for_others_to_join_can_be_ended(
    switch: str, end: Callable[[GroupJob], None], why: str
) -> None:
    """By another thread, such as a watchdog's; and the others do not wait for it."""
    before, store, names = jobs(switch), HashStore(), list[bytes]()

    def gather(data: bytes) -> list[bytes]:
        names.append(data)
        return names[:1] * 2

    with ThreadPoolExecutor(1) as pool:
        job = make_job(switch, 0, store, lambda data: [data] * 2 if data.startswith(b"{") else gather(data))
        joining = pool.submit(job.join)
        wait_until(lambda: set(jobs(switch)) - set(before))
        start_s = time.monotonic()
        end(job)
        with pytest.raises(AllReduceError, match=f"^rank 0 cannot join: {why}$"):
            joining.result(PATIENCE_S)
        assert time.monotonic() - start_s < 5
    other = make_job(switch, 1, store, lambda data: [data] * 2 if data.startswith(b"{") else gather(data))
    with pytest.raises(AllReduceError, match=f"^rank 0 cannot join: {why}$"):
        other.join()
    with pytest.raises(AllReduceError, match="was closed"):
        job.join()
    assert gone(switch, before)


def test_a_job_is_aborted_at_once_while_its_ranks_do_not_meet(switch: str) -> None:
    """Gloo, by which they meet, cannot be interrupted; the thread that waits in it is told when it comes back."""
    before, met, waits = jobs(switch), threading.Event(), threading.Event()

    def gather(data: bytes) -> list[bytes]:
        if not data.startswith(b"{"):
            waits.set()
            met.wait(PATIENCE_S)
        return [data] * 2

    job = make_job(switch, 0, HashStore(), gather)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(job.join)
        assert waits.wait(PATIENCE_S)
        job.abort()
        assert not joining.done()
        met.set()
        with pytest.raises(AllReduceError, match="cannot join: RuntimeError: its process group was aborted"):
            joining.result(PATIENCE_S)
    assert gone(switch, before)


def test_a_group_is_aborted_at_once_while_a_job_in_another_format_is_made(switch: str) -> None:
    made, met, waits = list[GroupJob](), threading.Event(), threading.Event()

    def make(form: str | None) -> GroupJob:
        if form is not None:
            waits.set()
            met.wait(PATIENCE_S)
        made.append(make_job(switch, 0, HashStore(), lambda data: [data] * 2))
        return made[-1]

    group = GroupJobs(make)

    def use() -> GroupJob:
        with exact():
            return group.current()

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(use)
        assert waits.wait(PATIENCE_S)
        group.abort()
        assert not making.done()
        met.set()
        assert making.result(PATIENCE_S) is made[1]
    assert [job.closed for job in made] == [True, True]
