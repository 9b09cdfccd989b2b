"""The epochs of one job, one after the other: the order to bind the next, and the one that runs."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from inagg_wire.noise_keys import seed_for_lease
from inagg_wire.slots import Lease

from ..binding import Binding
from .admission import JobSpec
from .events import ROOT, Bind, Epoch
from .members import JoinRequest
from .topology import Topology


class Epochs:
    """The epochs of job number ``job``; ``draw_token`` gives 32 random bits. Times in seconds."""

    def __init__(self, job: int, topology: Topology, draw_token: Callable[[], int]) -> None:
        self.running: Epoch | None = None
        """The epoch that runs, or is prepared."""
        self.started_at: float | None = None
        """Time at which it began to run; None: none runs."""
        self.ran = False
        """Whether one has ever run."""
        self.last_end = ""
        """How the last one that ran has ended; empty if none has."""
        self.switches: frozenset[str] = frozenset()
        """The switches that were ever ordered to bind the job, and so must be told to drop it."""
        self._job, self._topology, self._draw_token = job, topology, draw_token
        self._number = self._token = 0
        self._serial = 0  # counts the orders, so that an answer to an earlier one is known

    @property
    def number(self) -> int:
        """Number of the epoch that runs, the one that is prepared, or the last one; 0: none has ever run."""
        return self._number if self.ran else 0

    def uses(self, switches: Container[str]) -> bool:
        """Whether the epoch that runs, or is prepared, needs one of ``switches``."""
        return self.running is not None and any(name in switches for name in self.running.by_switch)

    def prepare(self, spec: JobSpec, leases: Sequence[Lease], claims: Sequence[JoinRequest]) -> Bind:
        """The order to bind the next epoch; ``leases`` are by shard, and ``claims`` has all ranks in order.

        Its number is above any that a rank brings: a switch that restarted has forgotten those. All ranks send from the
        smallest block that any of them still needs. Bindings have the seed that gives the same noise wherever the lease
        lies. A switch may multicast results to its ranks if all of them can listen.
        """
        assert spec.seed is not None
        # Not twice the same, so that a datagram of the last epoch cannot count in this one.
        last = self._token
        while self._token in (0, last):
            self._token = self._draw_token()
        flat = tuple(
            Binding(
                job=self._job,
                token=self._token,
                format=spec.format,
                lanes=spec.lanes,
                lease=lease,
                seed=spec.seed,
                children=tuple(request.addresses[shard] for request in claims),
                resume_block=min(request.next_block(shard) for request in claims),
                scatters=self._topology.limits.scatters,
            )
            for shard, lease in enumerate(leases)
        )
        deaf = {request.switch for request in claims if not request.multicast}
        if spec.parts is not None:
            leaf_of = [request.switch for request in claims]
            by_switch = self._topology.bindings(flat, leaf_of, spec.parts, set(leaf_of) - deaf)
        else:
            groups = self._topology.groups(ROOT, self._job) if not deaf else (None,) * len(flat)
            by_switch = {
                ROOT: tuple(
                    replace(binding, seed=seed_for_lease(spec.seed, binding.lease.base), group=group)
                    for binding, group in zip(flat, groups, strict=True)
                )
            }
        brought = [request.resume.epoch for request in claims if request.resume is not None]
        self._number = 1 + max(self._number, *brought, 0)
        self._serial += 1
        self.running = Epoch(self._number, by_switch)
        self.switches |= by_switch.keys()
        return Bind(self._job, self._serial, by_switch)

    def awaits(self, serial: int) -> bool:
        """Whether that order to bind is the last one, and still to be answered."""
        return self.running is not None and self.started_at is None and serial == self._serial

    def begin(self, now: float) -> Epoch:
        """Run the epoch that was prepared."""
        assert self.running is not None
        self.started_at, self.ran = now, True
        return self.running

    def stop(self) -> None:
        """No epoch runs, or is prepared, any more."""
        self.running = self.started_at = None
