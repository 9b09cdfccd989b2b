"""A registry, a recording driver and a clock that stands still: the control plane in verbs, without sockets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from inagg_switch.binding import Address, Binding
from inagg_switch.control import events as ev
from inagg_switch.control.admission import JobSpec, check
from inagg_switch.control.jobs import Job
from inagg_switch.control.members import JoinRequest, Position, Resume, Ticket
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import ControlError
from inagg_switch.control.registry import Registry
from inagg_switch.driver import Counters, DriverError, JobCounters, Limits, Shard, SlotWait
from inagg_wire.formats import FORMATS
from inagg_wire.noise_keys import seed_for_lease

LIMITS = Limits(formats=frozenset(FORMATS), workers=32, lanes=1448, datagram_bytes=1472, slots=1024, trees=True)


def overlaps(a: Binding, b: Binding) -> bool:
    """Whether two bindings of a shard share a slot."""
    return a.lease.base < b.lease.base + b.lease.slots and b.lease.base < a.lease.base + a.lease.slots


@dataclass
class RecordingDriver:
    """A switch that only remembers. Raises AssertionError if two jobs are ever given the same slot or token."""

    shard_count: int = 1
    slots: int = 1024
    limits: Limits = LIMITS
    groups: str | None = None
    name: str = "fake"
    bound: dict[tuple[int, int], Binding] = field(default_factory=dict)
    """(shard, job) -> what it is bound to now."""
    calls: list[str] = field(default_factory=list)
    bind_error: str = ""
    """If set, binding job `bind_error_job` (0: any) fails with this text."""
    bind_error_job: int = 0
    unbind_error: str = ""
    look_error: str = ""
    waits: dict[int, list[SlotWait]] = field(default_factory=dict)
    tells_slots: bool = True
    job_counters: dict[int, JobCounters] = field(default_factory=dict)

    @property
    def shards(self) -> tuple[Shard, ...]:
        return tuple(Shard(("127.0.0.1", 5000 + shard), self.slots, self.groups) for shard in range(self.shard_count))

    def admit(self, workers: Sequence[tuple[Address, ...]]) -> str | None:
        return None

    def bind(self, shard: int, binding: Binding) -> None:
        self.calls.append(f"bind {shard} {binding.job}")
        if self.bind_error and self.bind_error_job in (0, binding.job):
            raise DriverError(self.bind_error)
        for (other_shard, other_job), other in self.bound.items():
            if other_shard == shard and other_job != binding.job:
                assert not overlaps(other, binding), f"{binding} overlaps {other}"
        old = self.bound.get((shard, binding.job))
        assert old is None or old.token != binding.token
        assert binding.lease.base + binding.lease.slots <= self.slots
        self.bound[shard, binding.job] = binding

    def unbind(self, shard: int, job: int) -> None:
        self.calls.append(f"unbind {shard} {job}")
        if self.unbind_error:
            raise DriverError(self.unbind_error)
        self.bound.pop((shard, job), None)

    looks: int = 0

    def counters(self, shard: int) -> Counters:
        self.looks += 1
        if self.look_error:
            raise DriverError(self.look_error)
        return Counters(datagrams_in=7, jobs=dict(self.job_counters))

    def waiting(self, shard: int, job: int, limit: int) -> tuple[int, list[SlotWait]] | None:
        if not self.tells_slots:
            return None
        waits = self.waits.get(job, []) if shard == 0 else []
        return len(waits), waits[:limit]

    dead: str | None = None

    def died(self) -> str | None:
        return self.dead

    def restart(self, shard: int) -> None:
        self.calls.append(f"restart {shard}")
        self.dead = None
        for key in [key for key in self.bound if key[0] == shard]:
            del self.bound[key]

    def close(self) -> None:
        self.calls.append("close")


def spec(name: str = "job", workers: int = 2, window: int = 16, **rest: object) -> JobSpec:
    """A spec that every switch here can serve."""
    numbers: dict[str, object] = {"format_name": "nat8", "lanes": 1448, **rest}
    return check(LIMITS, name=name, workers=workers, window=window, **numbers)  # type: ignore[arg-type]


def resume(epoch: ev.Epoch, *next_blocks: int, reason: str = "") -> Resume:
    """What a rank of ``epoch`` brings that needs ``next_blocks``, one per shard."""
    positions = tuple(
        Position(binding.lease.slots, block) for binding, block in zip(epoch.bindings, next_blocks, strict=True)
    )
    return Resume(epoch.epoch, job_seed(epoch), positions, reason)


def job_seed(epoch: ev.Epoch) -> int:
    """The job's, from that of its binding, which differs by what its base makes of it."""
    binding = epoch.bindings[0]
    return seed_for_lease(binding.seed, binding.lease.base)


class World:
    """Verbs. Time passes in `wait` only; what the registry orders is done by the driver at once, unless `slow`."""

    def __init__(self, driver: RecordingDriver | None = None, policy: Policy | None = None) -> None:
        self.driver = driver or RecordingDriver()
        self.policy = policy or Policy()
        self.now = 1000.0
        self.slow = False
        self.orders: list[ev.Bind | ev.Unbind] = []
        self.epochs: dict[int, ev.Epoch] = {}
        self.errors: dict[int, ControlError] = {}
        self.events: list[ev.Event] = []
        self.events_of: dict[str, list[ev.Event]] = {}
        self.restart()

    def restart(self) -> None:
        """The switch starts again and knows nothing."""
        draws = itertools.count(1)
        self.driver.bound.clear()
        self.epochs.clear()
        self.errors.clear()
        self.registry = Registry(
            self.driver.shards,
            self.driver.limits,
            self.policy,
            draw=lambda: 0x1000 + next(draws),
            admit=self.driver.admit,
        )

    # ------------------------------------------------------------------------------ verbs of ranks

    def join(
        self,
        rank: int,
        job: JobSpec | str | None = None,
        *,
        member: int | None = None,
        brings: Resume | None = None,
        port: int | None = None,
        timeout_s: float = 300.0,
        multicast: bool = False,
    ) -> int:
        """Rank ``rank`` calls Join; returns the number of its ticket. Member and port default to rank's own."""
        address = ("10.0.0.1", port if port is not None else 4000 + rank)
        addresses = (address,) * self.driver.shard_count
        request = JoinRequest(rank, member if member is not None else 100 + rank, addresses, brings, multicast)
        ticket = self.registry.join(self.now, job if job is not None else spec(), request, self.now + timeout_s)
        self.last_ticket = ticket
        self.pump()
        return ticket.number

    def join_all(self, job: JobSpec | None = None, brings: Resume | None = None) -> ev.Epoch:
        """All ranks of a job join; returns their epoch."""
        job = job or spec()
        tickets = [self.join(rank, job, brings=brings) for rank in range(job.workers)]
        (epoch,) = {id(self.epochs[ticket]): self.epochs[ticket] for ticket in tickets}.values()
        return epoch

    def cancel(self, ticket: Ticket) -> None:
        """The call of a rank is cancelled."""
        self.registry.abandon(self.now, ticket)
        self.pump()

    def beat(self, *ranks: int, job: str = "job") -> None:
        """Ranks heart-beat."""
        for rank in ranks:
            self.registry.heartbeat(self.now, job, rank, 100 + rank)
        self.pump()

    def leave(self, rank: int, job: str = "job", *, end: bool = False, reason: str = "") -> None:
        """A rank leaves."""
        self.registry.leave(self.now, job, rank, 100 + rank, end=end, reason=reason)
        self.pump()

    # ------------------------------------------------------------------------------ time and the switch

    def wait(self, seconds: float, *, beating: tuple[int, ...] = (), job: str = "job") -> None:
        """Let time pass; ``beating`` ranks heart-beat meanwhile."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.5)
            self.beat(*beating, job=job)
            self.registry.tick(self.now)
            self.pump()

    def pump(self) -> None:
        """Take what has come about."""
        while outputs := self.registry.drain():
            for output in outputs:
                match output:
                    case ev.Emit():
                        self.events.append(output.event)
                        self.events_of.setdefault(output.name, []).append(output.event)
                    case ev.Admitted(ticket, epoch):
                        assert ticket not in self.epochs | self.errors.keys()
                        self.epochs[ticket] = epoch
                    case ev.Refused(ticket, error):
                        assert ticket not in self.epochs | self.errors.keys()
                        self.errors[ticket] = error
                    case ev.Bind() | ev.Unbind():
                        self.orders.append(output)
            if not self.slow:
                self.obey()

    def obey(self) -> None:
        """The switch does what it was ordered."""
        orders, self.orders = self.orders, []
        for order in orders:
            try:
                if isinstance(order, ev.Bind):
                    for shard, binding in enumerate(order.by_switch[ev.ROOT]):
                        self.driver.bind(shard, binding)
                    self.registry.bound(self.now, order.job, order.serial)
                else:
                    for shard in range(self.driver.shard_count):
                        self.driver.unbind(shard, order.job)
                    self.registry.jobs.unbound(order.job)
            except DriverError as error:
                if isinstance(order, ev.Bind):
                    self.registry.bind_failed(self.now, order.job, order.serial, str(error))
                else:
                    self.registry.jobs.quarantine.failed(self.now, order.job)
        if self.slow:
            self.pump()

    # ------------------------------------------------------------------------------ what one looks at

    def job(self, name: str = "job") -> Job:
        """The job."""
        return self.registry.jobs.by_name[name]

    def last(self, kind: type[ev.Event]) -> ev.Event:
        """The latest event of a kind."""
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    @property
    def slots_leased(self) -> int:
        """On the first shard."""
        return self.registry.pool.shards[0].slots_leased
