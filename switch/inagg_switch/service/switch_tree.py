"""The root's switch and those below it as one: what is done on all of them, and what they show together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from ..control import events as ev
from ..control.jobs import Job
from ..control.registry import Registry
from ..control.topology import AttachedSwitch
from ..driver import DriverError, SlotWait
from .driver_threads import DriverThreads, SwitchSnapshot, Waits, all_done, join_waits
from .remote_switch import RemoteSwitch, ShardLook

log = structlog.get_logger("inagg.tree")


class SwitchTree:
    """Decides nothing: the registry's topology says who is where. Its calls raise `DriverError`."""

    def __init__(self, registry: Registry, own: DriverThreads) -> None:
        self._registry, self._own = registry, own
        self._below: dict[str, RemoteSwitch] = {}
        """Switches below, by name."""
        self._closed = False

    def has(self, names: Iterable[str]) -> bool:
        """Whether all these switches are there, and none is about to go."""
        there = {name for name, remote in self._below.items() if not remote.gone.is_set()}
        return {ev.ROOT, *there}.issuperset(names)

    def attach(self, switch: AttachedSwitch) -> RemoteSwitch:
        """A switch has opened its stream. Raises `ControlError`."""
        self._registry.topology.attach(switch)
        remote = self._below[switch.name] = RemoteSwitch(switch.name)
        above = switch.parent or "this switch"
        log.info("switch_attached", name=switch.name, parent=above, shards=[s.address for s in switch.shards])
        return remote

    def detach(self, now: float, remote: RemoteSwitch, why: str) -> None:
        """Forget a switch below, whose stream is over, and those below it."""
        if self._below.get(remote.name) is not remote:
            return  # it went with its parent
        for name in self._registry.detach(now, remote.name, why):
            gone = self._below.pop(name)
            if gone is not remote:
                why = f"switch {remote.name!r}, above it, has gone"
            gone.end(why)
            gone.close()
            (log.info if self._closed else log.warning)("switch_lost", name=name, why=why)

    def close(self) -> None:
        """End the streams of all switches below."""
        self._closed = True
        for remote in self._below.values():
            remote.end("the root stops")

    async def bind(self, order: ev.Bind) -> None:
        """Bind on all switches at once: nobody sends before all are ready."""
        switches: dict[str, DriverThreads | RemoteSwitch] = {ev.ROOT: self._own, **self._below}
        if gone := order.by_switch.keys() - switches.keys():
            raise DriverError(f"switch {min(gone)!r} has gone")
        await all_done(switches[name].bind(bindings) for name, bindings in order.by_switch.items())

    async def unbind(self, order: ev.Unbind) -> None:
        """A switch that has gone has nothing to drop: it does so before it comes back."""
        there: list[DriverThreads | RemoteSwitch] = [
            self._own,
            *(self._below[name] for name in order.switches if name in self._below),
        ]
        await all_done(switch.unbind(order.job) for switch in there)

    async def _look_below(self, jobs: list[Job], limit: int) -> tuple[dict[str, tuple[ShardLook, ...]], dict[str, str]]:
        """Looks at the switches below, by name; and why others do not answer, which are gone soon."""
        numbers = [job.number for job in jobs if job.spec.parts is not None]
        remotes = list(self._below.values())
        found = await asyncio.gather(*(remote.look(numbers, limit) for remote in remotes), return_exceptions=True)
        looks: dict[str, tuple[ShardLook, ...]] = {}
        silent: dict[str, str] = {}
        for remote, look in zip(remotes, found, strict=True):
            if isinstance(look, DriverError):
                if remote.answers:  # else it is in the log already
                    log.warning("switch_silent", name=remote.name, why=str(look))
                silent[remote.name] = str(look)
            elif isinstance(look, BaseException):
                raise look
            else:
                looks[remote.name] = look
            remote.answers = remote.name in looks
        return looks, silent

    async def look(self, jobs: list[Job], limit: int) -> SwitchSnapshot:
        """All counters, and at most ``limit`` waiting slots of each of ``jobs``."""
        snapshot, (looks, silent) = await asyncio.gather(
            self._own.snapshot([job.number for job in jobs], limit), self._look_below(jobs, limit)
        )
        placed = {job.number: job.roster.placed for job in jobs if job.spec.parts is not None}
        unanswered: dict[int, dict[str, int]] = {}
        for number, ranks_at in placed.items():
            told: list[tuple[int, list[SlotWait]] | None] = []
            for name, ranks in ranks_at.items():
                for _, waits in looks.get(name, ()):
                    count, longest = waits.get(number, (0, []))
                    mine = [
                        replace(wait, missing=tuple(ranks[child] for child in wait.missing))
                        for wait in longest
                        if wait.missing and max(wait.missing) < len(ranks)
                    ]
                    told.append((count if mine else 0, mine))
                    # A slot that misses nobody waits for the answer from above: so it misses whom others miss.
                    if lacking := sum(not wait.missing for wait in longest):
                        by_switch = unanswered.setdefault(number, {})
                        by_switch[name] = by_switch.get(name, 0) + lacking
            known = {rank for of_shard in told if of_shard for wait in of_shard[1] for rank in wait.missing}
            told.append(self._behind(snapshot.waits.pop(number, None), ranks_at, known))
            joined = join_waits(told, limit)
            if joined is not None:
                snapshot.waits[number] = joined
        # Of one that is silent those that it gave last: without them its ranks' counters would fall to 0, and what it
        # counts when it is back would count as of one moment.
        answered = {*looks, *silent}
        below = {name: remote.last for name, remote in self._below.items() if name in answered and remote.last}
        return replace(
            snapshot, shards={**snapshot.shards, **below}, placed=placed, unanswered=unanswered, silent_below=silent
        )

    def _behind(
        self, waits: Waits | None, placed: Mapping[str, Sequence[int]], known: set[int]
    ) -> tuple[int, list[SlotWait]]:
        """The root's waiting slots, by rank: where it misses a switch below, all ranks behind that, unless some of them
        are ``known`` to be missing there."""
        if waits is None:
            return 0, []
        behind, found = self._registry.topology.ranks_below(placed), []
        for _, wait in waits.longest:
            if not wait.missing or max(wait.missing) < len(behind):
                missing = [rank for child in wait.missing if not known & {*behind[child]} for rank in behind[child]]
                if missing:
                    found.append(replace(wait, missing=tuple(missing)))
        return len(found), found
