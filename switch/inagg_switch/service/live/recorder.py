"""Content of the live view: the last look at the switch, and the course of the last minutes.

It sees what the control plane's own polls see and asks the switch nothing, so an open page costs the data planes
nothing. Figures are those of `inagg top --json`, `why --json` and `jobs --json`, made by the same functions.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inagg_proto.v1 import control_pb2 as pb

from ..answers import list_answer, stats_answer, why_answer
from ..controller import Controller
from ..driver_threads import SwitchSnapshot
from ..plain import plain
from ..rates import JobRates, Rates, as_plain, rates
from ..verdict import verdict
from .sentences import sentence

POINTS_KEPT: Final = 300
"""Polls whose rates are remembered: five minutes of them, if nobody says otherwise."""
RANKS_ALWAYS: Final = 1024
"""Ranks on the switch up to which the course is recorded all the time; beyond them only while a page is open, since
then it takes some share of a core."""
WATCHED_S: Final = 10.0
"""Seconds after its last question in which a page counts as open."""
RANKS_SHOWN: Final = 256
"""Ranks on the switch up to which a page is told of every rank; beyond them, of the jobs' that it asks for."""
SLOTS_SHOWN: Final = 16
DIGITS: Final = 4
"""Digits of the figures that charts are drawn from."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a page: what it has already, by the numbers of looks and events, of which run of the switch; and
    the jobs whose ranks it wants to see where there are many."""

    run: str = ""
    look: int = 0
    event: int = 0
    jobs: frozenset[str] = frozenset()


class Recorder:
    """Takes part in each poll of ``controller``. On its event loop."""

    def __init__(self, controller: Controller) -> None:
        self.run = secrets.token_hex(8)
        """Tells this run of the switch from others."""
        self._controller = controller
        self._before: pb.StatsResponse | None = None
        self._number = 0
        self._at = float("-inf")
        """Time of the last look that is recorded."""
        self._now: Plain = {}
        self._why: list[Plain] = []
        self._points: deque[Plain] = deque(maxlen=POINTS_KEPT)
        self._asked_at = float("-inf")
        controller.on_poll.append(self._take)
        if controller.last_snapshot is not None:
            self._take(controller.last_snapshot)

    def _take(self, snapshot: SwitchSnapshot) -> None:
        controller = self._controller
        jobs = list(controller.registry.jobs)
        if not self._watched and sum(job.spec.workers for job in jobs) > RANKS_ALWAYS:
            return
        stats = stats_answer(controller, snapshot, jobs)
        look = rates(self._before, stats)
        self._before, self._at = stats, snapshot.at
        self._number += 1
        self._now = as_plain(look)
        self._why = [_why(why_answer(controller, snapshot, job, SLOTS_SHOWN)) for job in jobs]
        if look.interval_s:
            self._points.append(_point(self._number, look))

    @property
    def _watched(self) -> bool:
        """Whether a page is open."""
        since_s = self._controller.now() - self._asked_at
        return since_s < max(WATCHED_S, 3 * self._controller.policy.poll_interval_s)

    def answer(self, question: Question) -> Plain:
        """All that a page shows, but for what it has. What is in it changes no more, but for its outermost level. The
        switch has been looked at before."""
        controller, now = self._controller, self._controller.now()
        was_watched, self._asked_at = self._watched, now
        if not was_watched and controller.last_snapshot is not None and controller.last_snapshot.at > self._at:
            self._take(controller.last_snapshot)
        if question.run != self.run:
            question = Question(jobs=question.jobs)
        shown = dict(self._now)
        if sum(len(job["workers"]) for job in shown.get("jobs", ())) > RANKS_SHOWN:
            shown["jobs"] = [_without_ranks(job, question.jobs) for job in shown["jobs"]]
        return {
            "run": self.run,
            "healthy": controller.healthy,
            "draining": controller.registry.draining,
            "interval_s": controller.policy.poll_interval_s,
            "at_s": now,
            "look": self._number,
            "event": controller.events.last,
            "now": shown,
            "why": self._why,
            "ended": [_ended(ended) for ended in list_answer(controller).ended],
            "points": [point for point in self._points if point["look"] > question.look],
            "events": [
                {"number": number, "job": emit.name, "at_s": emit.at, "text": text, "mood": mood.value}
                for number, emit in controller.events.after(question.event)
                for text, mood in (sentence(emit.event),)
            ],
        }


def _why(answer: pb.WhyResponse) -> Plain:
    """An answer to Why as `inagg why --json` has it, but for the job, which `now` has."""
    fields = plain(answer)
    del fields["job"], fields["ended"]
    return {"name": answer.job.spec.name, "verdict": verdict(answer).value, **fields}


def _ended(ended: pb.EndedJob) -> Plain:
    """An ended job as `inagg jobs --json` has it, and its elements."""
    elements = ended.totals.results * ended.spec.lanes if ended.HasField("totals") else None
    return {**plain(ended), "elements": elements}


def _without_ranks(job: Plain, asked: frozenset[str]) -> Plain:
    return job if job["job"]["spec"]["name"] in asked else {**job, "workers": None}


def _point(number: int, look: Rates) -> Plain:
    """One look, as far as charts show it."""
    return {
        "look": number,
        "at_s": look.now.at_s,
        **_rounded(
            elements=sum(job.elements for job in look.jobs),
            bits_in=sum(shard.bits_in for shard in look.shards),
            bits_out=sum(shard.bits_out for shard in look.shards),
            again=sum(_again(job) for job in look.jobs),
            drops=sum(rate for _, _, rate in look.drops) + sum(shard.kernel_drops for shard in look.shards),
            cpu=sum(shard.cpu for shard in look.shards),
        ),
        "jobs": [_job_point(job) for job in look.jobs],
    }


def _job_point(job: JobRates) -> Plain:
    trips = [worker.now.round_trip_s for worker in job.workers if worker.now.HasField("round_trip_s")]
    return {
        "number": job.now.job.job,
        "waiting": job.now.slots_waiting,
        **_rounded(elements=job.elements, again=_again(job)),
        "round_trip_s": _digits(max(trips)) if trips else None,
        "ranks": [_digits(worker.bits_in) for worker in job.workers],
    }


def _again(job: JobRates) -> float:
    """Datagrams a second that went over the network again."""
    return job.duplicates + job.resends + job.stale


def _rounded(**values: float) -> Mapping[str, float]:
    return {name: _digits(value) for name, value in values.items()}


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
