"""What ends with a group, or with a job that could not be joined: each part, in order, whatever another does."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import ReduceOp

from inagg_host.errors import AllReduceError
from inagg_host.stats import Counters
from inagg_host.torch import InaggGroup, InaggState, backend, exact, hook_state
from inagg_host.torch import job as module
from inagg_host.torch.hosts import HostAllReduce
from inagg_host.torch.job import GroupJob
from inagg_host.torch.jobs import GroupJobs

WHY = AllReduceError("it broke, for a test")


class Part:
    """In place of a group, or of a job: notes in ``calls`` what is called of it."""

    def __init__(self, name: str, calls: list[str], fails: str = "") -> None:
        """``fails``: the call that raises."""
        self._name, self._calls, self._fails = name, calls, fails

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self._calls.append(f"{self._name} {name}")
            if name == self._fails:
                raise WHY

        return call


def parts(*names: str) -> tuple[list[str], list[Any]]:
    calls = list[str]()
    return calls, [Part(name, calls) for name in names]


def make_job(workers: int = 2, label: str = "world", **options: Any) -> GroupJob:
    options = {"switch": "127.0.0.1:9", **options}
    return GroupJob(options, 0, workers, timedelta(seconds=1), label, lambda data: [data] * workers, HashStore())


def fail(*_: Any, **__: Any) -> Any:
    raise WHY


# --- a group ---


def test_a_group_that_cannot_be_made_leaves_no_inner_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, (inner,) = parts("inner")
    monkeypatch.setattr(backend, "rendezvous", lambda store, *_: store)
    monkeypatch.setattr(backend, "make_inner", lambda *_: inner)
    monkeypatch.setattr(backend, "GroupJobs", fail)
    with pytest.raises(AllReduceError, match="for a test"):
        backend.come_together(HashStore(), 0, 2, timedelta(seconds=1), "group", {}, True)
    assert calls == ["inner shutdown"]


def test_jobs_are_left_before_the_inner_group_by_which_their_ranks_meet() -> None:
    calls, (inner, jobs) = parts("inner", "jobs")
    InaggGroup.shutdown(SimpleNamespace(inner=inner, jobs=jobs))  # type: ignore[arg-type]
    assert calls == ["jobs close", "inner shutdown"]


def test_jobs_are_aborted_though_the_inner_group_cannot_be() -> None:
    """Else the other ranks would wait for this one."""
    calls, (jobs,) = parts("jobs")
    group: Any = SimpleNamespace(inner=Part("inner", calls, fails="abort"), jobs=jobs)
    with pytest.raises(AllReduceError, match="for a test"):
        InaggGroup.abort(group)
    assert calls == ["inner abort", "jobs abort"]


def test_a_group_has_failed_if_one_of_its_jobs_has() -> None:
    def make(form: str | None) -> Any:
        settings = SimpleNamespace(config=SimpleNamespace(format=form or "nat8"), reduce_scatter_format="nat8")
        return SimpleNamespace(settings=settings, failure=None if form is None else WHY)

    jobs = GroupJobs(make)
    assert jobs.failure is None
    with exact():
        jobs.current()
    assert jobs.failure is WHY


# --- a job ---


@pytest.mark.parametrize(
    ("workers", "options", "left"),
    [(2, {"policy": "fallback"}, ["spare close"]), (4, {"local_size": 2}, ["inside shutdown", "inside shutdown"])],
    ids=["fallback", "hosts"],
)
def test_a_job_that_cannot_be_joined_leaves_no_group(
    workers: int, options: dict[str, Any], left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, (spare, inside) = parts("spare", "inside")
    monkeypatch.setattr(module, "ArrayGroup", lambda *_: spare)
    monkeypatch.setattr(module, "make_inner", lambda *_: inside)
    monkeypatch.setattr(module, "TensorAllReduce", fail)
    with pytest.raises(AllReduceError, match="for a test"):
        make_job(workers, **options).join()
    assert calls == left


def test_a_job_that_is_closed_just_as_it_was_joined_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the switch would keep this rank, and the others wait for it."""
    calls, (sums, spare) = parts("sums", "spare")
    job = make_job()

    def join(name: str) -> Any:
        job.close()
        return sums, spare

    monkeypatch.setattr(job, "_join", join)
    with pytest.raises(AllReduceError, match=r"^rank 0 cannot join: its job was closed$"):
        job.join()
    assert calls == ["sums drain", "sums close", "spare close"]


@pytest.mark.parametrize(("label", "hinted"), [("world", False), ("ddp", False), ("0-1", True)])
def test_where_there_is_no_room_only_groups_that_one_may_do_without_are_told_of_gloo(
    label: str, hinted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str) -> Any:
        raise AllReduceError("the switch says: no room for job 'x'")

    job = make_job(label=label)
    monkeypatch.setattr(job, "_join", full)
    with pytest.raises(AllReduceError, match="no room for job") as told:
        job.join()
    assert ('new_group(backend="gloo")' in str(told.value)) is hinted


def test_what_is_not_the_same_sum_has_another_tag() -> None:
    """By which ranks find out that they sum different things."""

    def tag(*sum_: Any, place: int = 0, **more: Any) -> int:
        """The tag of a job's sum, in its ``place``."""
        tags, job = list[int](), make_job()
        sums: Any = SimpleNamespace(submit=lambda *_, tag, **__: tags.append(tag))
        job._sums = sums
        for _ in range(place + 1):
            job.sum(*sum_, **more)
        return tags[place]

    ones = torch.ones(2, 3)
    others = [tag(torch.ones(3, 2)), tag(ones, number=1), tag(ones, ReduceOp.AVG), tag(ones, place=1)]
    assert len({tag(ones), *others}) == 5
    assert tag(torch.zeros(2, 3)) == tag(ones)


# --- the state of a hook ---


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> InaggState:
    """One that has no group, as its methods see it."""
    monkeypatch.setattr(InaggState, "group", lambda state: None)
    monkeypatch.setattr(hook_state, "_is_registered", lambda group: True)
    return InaggState(switch="127.0.0.1:9")


def ended_job(calls: list[str], name: str) -> Any:
    job = Part(name, calls)
    job.closed, job.inner, job.workers = True, Counter[str](), 2  # type: ignore[attr-defined]
    job.counters = Counters()  # type: ignore[attr-defined]
    return job


@pytest.mark.parametrize(("elsewhere", "closed"), [(False, []), (True, ["gather close"])])
def test_a_state_gathers_by_no_group_of_ranks_that_it_has_left(
    state: InaggState, elsewhere: bool, closed: list[str]
) -> None:
    calls, (gather,) = parts("gather")
    state._gather = gather
    state._take(ended_job(calls, "new"), elsewhere)
    assert calls == closed
    assert (state._gather is None) is elsewhere


def test_a_state_leaves_a_job_for_another_when_all_ranks_have_made_that(
    state: InaggState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then one of them may need it."""
    calls = list[str]()
    old, new = (ended_job(calls, name) for name in ("old", "new"))
    state._job = old
    monkeypatch.setattr(state, "_elsewhere", lambda: False)
    monkeypatch.setattr(state, "_make_job", lambda *_: new)
    monkeypatch.setattr(state, "job", lambda: new)
    monkeypatch.setattr(dist, "barrier", lambda group: calls.append("all are here"))
    state.use(None)
    assert calls == ["all are here", "old close"]
    assert state._job is new


# --- a host of several ranks ---


def sums_of_hosts(calls: list[str]) -> Any:
    sums = Part("sums", calls)
    sums.arrays = SimpleNamespace(timeout_s=10.0)  # type: ignore[attr-defined]
    return sums


def test_the_groups_inside_of_a_host_end_with_its_job() -> None:
    calls, (scatter, gather) = parts("scatter", "gather")
    HostAllReduce(sums_of_hosts(calls), scatter, gather).close()
    assert calls == ["sums close", "gather shutdown", "scatter shutdown"]


def test_the_groups_inside_of_a_host_are_aborted_before_its_job_ends_for_all() -> None:
    """What the device has to do in them comes before what the others' end waits for."""
    calls, (scatter, gather) = parts("scatter", "gather")
    HostAllReduce(sums_of_hosts(calls), scatter, gather).close("it broke", end=True)
    assert calls == ["scatter abort", "gather abort", "sums close", "gather shutdown", "scatter shutdown"]
