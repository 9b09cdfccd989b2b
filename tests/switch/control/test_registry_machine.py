"""Any sequence of calls, failures and silences, of several jobs at once: nothing leaks, nothing is shared, a refused
call changes nothing, and no call for one job changes another."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.switch.control.world import RecordingDriver, World, resume, spec

from inagg_switch.control import events as ev
from inagg_switch.control.members import Ticket
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import ControlError
from inagg_switch.control.states import JobState, MemberState

NAMES = ("a", "b")
SLOTS = 64
POLICY = Policy(heartbeat_limit_s=4, rejoin_limit_s=6, join_timeout_s=10, unbind_retry_s=1)

names = st.sampled_from(NAMES)
ranks = st.integers(0, 2)


class RegistryMachine(RuleBasedStateMachine):
    """`World` under random calls. Jobs have two or three workers, and not all windows fit at once."""

    @initialize(shards=st.integers(1, 2))
    def start(self, shards: int) -> None:
        self.world = World(RecordingDriver(shard_count=shards, slots=SLOTS), POLICY)
        self.tickets: list[Ticket] = []
        self.last_epochs: dict[str, ev.Epoch] = {}
        self.seen_epochs: dict[int, int] = {}

    # ------------------------------------------------------------------------------ looking

    def picture(self, name: str) -> object:
        job = self.world.registry.jobs.by_name.get(name)
        if job is None:
            return None
        members = [(m.request, m.heard_at, m.state, m.ticket, m.was_in_epoch) for m in job.roster]
        return (job.number, job.spec, job.leases, job.state, job.epochs.number, job.grace.ends_at, members)

    def call(self, name: str, call: object) -> None:
        """Make a call for one job: others must not change, and if it is refused, nothing."""
        before = {other: self.picture(other) for other in NAMES}
        leased = self.world.slots_leased
        driver_calls = len(self.world.driver.calls)
        try:
            call()  # type: ignore[operator]
        except ControlError:
            assert {other: self.picture(other) for other in NAMES} == before
            assert self.world.slots_leased == leased
            assert len(self.world.driver.calls) == driver_calls
        else:
            del before[name]
            assert {other: self.picture(other) for other in before} == before

    # ------------------------------------------------------------------------------ calls

    @rule(
        name=names,
        rank=ranks,
        workers=st.integers(2, 3),
        window=st.sampled_from([2, 8, 16]),
        process=st.integers(0, 1),
        brings=st.one_of(st.none(), st.integers(0, 12)),
        timeout_s=st.sampled_from([1.0, 30.0]),
    )
    def join(
        self, name: str, rank: int, workers: int, window: int, process: int, brings: int | None, timeout_s: float
    ) -> None:
        live = self.world.registry.jobs.by_name.get(name)
        job = live.spec if live is not None else spec(name, workers, window)
        had = self.last_epochs.get(name)
        brought = None
        if brings is not None and had is not None:
            brought = resume(had, *[brings] * self.world.driver.shard_count)

        def call() -> None:
            self.world.join(rank, job, member=10 * rank + process + 1, brings=brought, timeout_s=timeout_s)
            self.tickets.append(self.world.last_ticket)

        self.call(name, call)

    @rule(name=names, workers=st.integers(2, 3), window=st.sampled_from([2, 8, 16]), process=st.integers(0, 1))
    def join_all(self, name: str, workers: int, window: int, process: int) -> None:
        for rank in range(3):
            self.join(name, rank, workers, window, process, None, 30.0)

    @rule(name=names, process=st.integers(0, 1), needs=st.lists(st.integers(0, 12), min_size=3, max_size=3))
    def all_go_on(self, name: str, process: int, needs: list[int]) -> None:
        for rank, needed in enumerate(needs):
            self.join(name, rank, 2, 8, process, needed, 30.0)

    @rule(name=names, workers=st.integers(2, 3), window=st.sampled_from([2, 8, 16, 32]))
    def create(self, name: str, workers: int, window: int) -> None:
        self.call(name, lambda: self.world.registry.create(self.world.now, spec(name, workers, window)))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(self.tickets)))

    @rule(name=names, rank=ranks, process=st.integers(0, 1), end=st.booleans())
    def leave(self, name: str, rank: int, process: int, end: bool) -> None:
        member = 10 * rank + process + 1

        def call() -> None:
            self.world.registry.leave(self.world.now, name, rank, member, end=end)
            self.world.pump()

        self.call(name, call)

    @rule(name=names, process=st.integers(0, 1))
    def beat(self, name: str, process: int) -> None:
        for rank in range(3):
            member = 10 * rank + process + 1
            self.call(name, lambda r=rank, m=member: self.world.registry.heartbeat(self.world.now, name, r, m))

    # ------------------------------------------------------------------------------ time and the switch

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]), silent=st.sampled_from([None, *NAMES]), rank=ranks)
    def wait(self, seconds: float, silent: str | None, rank: int) -> None:
        """Time passes; all heart-beat, but for one rank of one job."""
        for _ in range(int(2 * seconds)):
            self.world.wait(0.5)
            for job in self.world.registry.jobs:
                for member in job.roster:
                    if member.alive and (job.name, member.rank) != (silent, rank):
                        job.roster.heartbeat(self.world.now, member.rank, member.request.member)

    @rule(slow=st.booleans())
    def be_slow(self, slow: bool) -> None:
        self.world.slow = slow
        self.world.pump()
        if not slow:
            self.world.obey()
            self.world.pump()

    @rule()
    def obey(self) -> None:
        self.world.obey()
        self.world.pump()

    @rule(which=st.sampled_from(["bind_error", "unbind_error"]), fails=st.booleans())
    def fail(self, which: str, fails: bool) -> None:
        setattr(self.world.driver, which, "broken" if fails else "")

    @rule(sure=st.integers(0, 3).map(bool))
    def restart(self, sure: bool) -> None:
        if sure:
            return
        self.world.orders.clear()
        self.tickets.clear()
        self.seen_epochs.clear()
        self.world.restart()

    # ------------------------------------------------------------------------------ what always holds

    @invariant()
    def epochs_only_grow(self) -> None:
        if hasattr(self, "world"):
            for name, job in self.world.registry.jobs.by_name.items():
                running = job.epochs.running if job.state is JobState.RUNNING else None
                if running is not None:
                    assert running.epoch >= self.seen_epochs.get(job.number, 1)
                    self.seen_epochs[job.number] = running.epoch
                    self.last_epochs[name] = running

    @invariant()
    def leases_are_disjoint_and_all_accounted_for(self) -> None:
        if hasattr(self, "world"):
            registry = self.world.registry
            jobs = [*registry.jobs.by_name.values(), *registry.jobs.quarantine.jobs.values()]
            assert {job.number: job for job in jobs} == registry.jobs.by_number
            for shard in range(self.world.driver.shard_count):
                leased = {job.leases[shard].base: job.leases[shard].slots for job in jobs}
                assert len(leased) == len(jobs)
                assert registry.pool.shards[shard].leased == leased

    @invariant()
    def the_switch_serves_only_slots_that_its_job_leases(self) -> None:
        if hasattr(self, "world"):
            for (shard, number), binding in self.world.driver.bound.items():
                assert self.world.registry.jobs.by_number[number].leases[shard] == binding.lease

    @invariant()
    def a_running_job_is_bound_as_its_ranks_were_told(self) -> None:
        if hasattr(self, "world"):
            for job in self.world.registry.jobs:
                if job.state is JobState.RUNNING:
                    assert job.epochs.running is not None
                    for shard, binding in enumerate(job.epochs.running.bindings):
                        assert self.world.driver.bound[shard, job.number] == binding
                    assert {m.state for m in job.roster} <= {MemberState.ACTIVE, MemberState.LEFT}
                    assert len(job.roster.by_rank) == job.spec.workers

    @invariant()
    def every_call_that_was_not_answered_still_waits(self) -> None:
        if hasattr(self, "world"):
            waiting = {m.ticket.number for job in self.world.registry.jobs for m in job.roster if m.ticket}
            answered = self.world.epochs.keys() | self.world.errors.keys()
            assert not waiting & answered

    def teardown(self) -> None:
        """When all fall silent and the switch works, everything comes back."""
        if hasattr(self, "world"):
            self.fail("bind_error", False)
            self.fail("unbind_error", False)
            self.be_slow(False)
            self.world.wait(100)
            assert not self.world.registry.jobs.by_number
            assert not self.world.driver.bound
            assert all(shard.largest_free == SLOTS for shard in self.world.registry.pool.shards)


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
