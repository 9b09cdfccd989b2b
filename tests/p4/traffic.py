"""Seeded traffic of several jobs: what workers send, again and late and out of turn, and what nobody may send."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.switch.aggregation.hostile import refused
from tests.switch.aggregation.world import STRANGER, make_contribution, random_codes

from inagg_switch.binding import Address, Binding
from inagg_wire.formats import JobFormat, job_format
from inagg_wire.layout import LANE_MULTIPLE, Op
from inagg_wire.slots import Lease

from .rig import Rig

HOSTS = [f"10.77.0.{i}" for i in range(1, 6)]
EVERYONE = [*HOSTS, STRANGER[0]]
LATE = (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, -1, -2, -3, 2)
"""Generations from the one that a slot serves."""


def jobs_for(formats: list[str], lanes: int) -> list[Binding]:
    """Three jobs: neighbouring leases, the same hosts in other ranks, fewer and more lanes and workers."""
    fmt = [job_format(name) for name in formats]

    def workers(count: int, first: int, port: int) -> tuple[Address, ...]:
        return tuple((HOSTS[(first + rank) % len(HOSTS)], port + rank) for rank in range(count))

    def at_least(f: JobFormat, count: int) -> int:
        return min(lanes, max(f.min_lanes, count // LANE_MULTIPLE * LANE_MULTIPLE))

    return [
        Binding(
            7, 0xC0FFEE01, fmt[0], at_least(fmt[0], lanes), Lease(0, 4), 0x5EED0001, workers(3, 0, 5000), scatters=True
        ),
        Binding(8, 0xFFFFFFFF, fmt[-1], at_least(fmt[-1], lanes // 2), Lease(4, 4), 0, workers(2, 2, 5000)),
        Binding(0xABCD, 1, fmt[0], at_least(fmt[0], 8), Lease(8, 2), 0xFFFFFFFF, workers(7, 1, 6000), scatters=True),
    ]


class Traffic:
    """Plays ``seed`` to a rig that has `EVERYONE` on its ports."""

    def __init__(self, rig: Rig, bindings: list[Binding], seed: int) -> None:
        self.rig = rig
        self.rng = np.random.default_rng(seed)
        self.bindings = {binding.job: binding for binding in bindings}
        for binding in bindings:
            rig.bind(binding)

    def play(self, count: int) -> None:
        """``count`` datagrams, and new epochs now and then."""
        for _ in range(count):
            if self.rng.random() < 0.002:
                self.new_epoch()
            kind = self.rng.random()
            if kind < 0.8:
                self.contribute()
            elif kind < 0.95:
                payload, source = refused(self.rng, list(self.bindings.values()), blocks=16)
                self.rig.receive(payload, source)
            else:
                self.elsewhere()

    def any_job(self) -> Binding:
        return list(self.bindings.values())[int(self.rng.integers(len(self.bindings)))]

    def new_epoch(self) -> None:
        """Another token, and sometimes one worker more or less; sometimes the job ends and comes back."""
        old = self.any_job()
        if self.rng.random() < 0.3:
            self.rig.unbind(old.job)
        token, seed = (int(number) for number in self.rng.integers(1, 1 << 32, 2))
        new = replace(old, token=token, seed=seed, resume_block=int(self.rng.choice([0, 1, 6, 1_000_003])))
        if self.rng.random() < 0.3:
            new = replace(new, children=(*new.children[1:], (HOSTS[0], 7000 + int(self.rng.integers(100)))))
        self.bindings[new.job] = new
        self.rig.bind(new)

    def contribute(self) -> None:
        """What one worker may well send: mostly something that is missing, sometimes again, sometimes late."""
        binding = self.any_job()
        lease, n = binding.lease, len(binding.children)
        place = int(self.rng.integers(lease.slots))
        slot = self.rig.pair.model.slots[lease.base + place]
        generation = max(1, slot.tag + LATE[int(self.rng.integers(len(LATE)))])
        missing = [rank for rank in range(n) if not slot.seen >> rank & 1]
        if generation == slot.tag and missing and self.rng.random() < 0.8:
            rank = missing[int(self.rng.integers(len(missing)))]
        else:
            rank = int(self.rng.integers(n))
        block = (generation - 1) * lease.slots + place
        op = Op.MAX if (block % 5 == 2) != (self.rng.random() < 0.03) else Op.SUM
        self.rig.receive(self.contribution(binding, rank, block, op), binding.children[rank])

    def contribution(self, binding: Binding, rank: int, block: int, op: Op) -> bytes:
        """The same bytes whenever this rank sends this block."""
        rng = np.random.default_rng((binding.job, binding.token, rank, block))
        lanes = binding.format.lanes_for(op, binding.lanes)
        codes = random_codes(rng, binding.format.encoding(op), binding.format, len(binding.children), lanes)
        owner = 0
        if binding.owners and op is Op.SUM:
            owner = (block + (rng.random() < 0.05)) % (binding.owners + 1)
        return make_contribution(binding, block, codes, op, owner=owner)

    def elsewhere(self) -> None:
        """A worker's datagram from another port of the switch, from another UDP port, or from a stranger."""
        binding = self.any_job()
        payload = self.contribution(binding, 0, int(self.rng.integers(1, 8)), Op.SUM)
        source = binding.children[0]
        match int(self.rng.integers(3)):
            case 0:
                # It has the worker's address, but comes in where another host is: whoever it is, the model would take
                # it for the worker, which has no ports. So the model is told of a stranger.
                self.rig.wrong_port(payload, source, STRANGER)
            case 1:
                self.rig.receive(payload, (source[0], 9))
            case _:
                self.rig.receive(payload, STRANGER)
