"""The switches below this one: which there are, who their parents are, and which of them a job uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.names import NAME, NAME_CHARS_MAX
from inagg_wire.slots import Lease

from ..binding import Address, Binding
from ..driver import Limits, Shard
from ..multicast_groups import group_of
from ..text import count_text, ranks_text
from .admission import JobSpec
from .events import ROOT
from .refusals import Code, ControlError
from .tree import Branch, bindings

LEVELS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class AttachedSwitch:
    """A switch that has a parent: its name, its parent's, its data planes, and what it can serve."""

    name: str
    parent: str
    shards: tuple[Shard, ...]
    limits: Limits


class Topology:
    """The tree of switches. Jobs have the same slots on all of them, so none has fewer than the root."""

    def __init__(self, shards: Sequence[Shard], limits: Limits) -> None:
        """``shards``, ``limits``: those of the root."""
        self.switches: dict[str, AttachedSwitch] = {}
        self._root = AttachedSwitch(ROOT, ROOT, tuple(shards), limits)

    @property
    def limits(self) -> Limits:
        """Limits that all switches can serve; fan-in is not the world size."""
        every = [self._root.limits, *(switch.limits for switch in self.switches.values())]
        return replace(
            self._root.limits,
            formats=frozenset.intersection(*(limits.formats for limits in every)),
            lanes=min(limits.lanes for limits in every),
            datagram_bytes=min(limits.datagram_bytes for limits in every),
            scatters=all(limits.scatters for limits in every),
            window=min((limits.window for limits in every if limits.window is not None), default=None),
        )

    def has(self, name: str) -> bool:
        """Whether that switch is there."""
        return name == ROOT or name in self.switches

    def attach(self, switch: AttachedSwitch) -> None:
        """A switch has come. Raises `ControlError` if it does not fit, and then nothing has changed."""
        name, shards, root = switch.name, switch.shards, self._root.shards
        why = None
        if switch.parent != ROOT and switch.parent not in self.switches:
            words = f"switch {name!r} cannot attach yet: its parent {switch.parent!r} is not there: try again"
            raise ControlError(Code.UNAVAILABLE, words)
        if len(name) > NAME_CHARS_MAX or not NAME.fullmatch(name):
            why = f"use 1 to {NAME_CHARS_MAX} letters, digits and any of ._:/- for its name (--name)"
        elif not self._root.limits.trees:
            why = "the root is a P4 switch, and runs no program for trees: start it with one (--program ...-root)"
        elif name in self.switches:
            why = "another of that name is there: give it a name of its own (--name)"
        elif len(self.path(switch.parent)) + 2 > LEVELS_MAX:
            why = f"a tree has at most {LEVELS_MAX} levels: give it a parent that is higher up (--parent)"
        elif len(self.below(switch.parent)) >= CHILDREN_MAX:
            why = f"its parent has {CHILDREN_MAX} switches already, which is all that it can have"
        elif len(shards) != len(root):
            has = count_text(len(shards), "shard")
            why = f"it has {has}, and the root {len(root)}: start it with --shards {len(root)}"
        elif any(mine.slots < its.slots for mine, its in zip(shards, root, strict=True)):
            why = (
                f"it has {shards[0].slots} slots, and the root {root[0].slots}: start it with --slots {root[0].slots}, "
                f"or, if it is a P4 switch, the root with --slots {shards[0].slots}"
            )
        elif apart := [
            f"{mine.address[0]}, and those of its parent at {its.address[0]}"
            for mine, its in zip(shards, self.shards(switch.parent), strict=True)
            if (":" in mine.address[0]) != (":" in its.address[0])
        ]:
            why = f"its data planes are at {apart[0]}: give both addresses of IPv4, or both of IPv6 (--data)"
        if why is not None:
            raise ControlError(Code.FAILED_PRECONDITION, f"switch {name!r} cannot be part of this tree: {why}")
        self.switches[name] = switch

    def detach(self, name: str) -> tuple[str, ...]:
        """A switch has gone; the names of it and of all below it, which have gone with it."""
        gone = [name]
        for other in gone:
            gone += [switch.name for switch in self.below(other)]
        for other in gone:
            self.switches.pop(other, None)
        return tuple(gone)

    def below(self, name: str) -> list[AttachedSwitch]:
        """The switches whose parent is ``name``."""
        return [switch for switch in self.switches.values() if switch.parent == name]

    def ranks_below(self, placed: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
        """Ranks behind each child of the root, in the order of `bindings`. ``placed``: the job's ranks by the switch
        where they have joined."""
        paths = {leaf: self._path_of(leaf) for leaf in placed}
        found = []
        for child in self.below(ROOT):
            ranks = [rank for leaf, mine in placed.items() if child.name in paths[leaf] for rank in mine]
            if ranks:
                found.append(tuple(sorted(ranks)))
        return found

    def path(self, name: str) -> tuple[str, ...]:
        """The switches from ``name`` up to the root, without that."""
        names: list[str] = []
        while name != ROOT:
            names.append(name)
            name = self.switches[name].parent
        return tuple(names)

    def receive_bytes(self, name: str) -> int | None:
        """`Limits.receive_bytes` of a switch; None if it has gone."""
        if name == ROOT:
            return self._root.limits.receive_bytes
        return self.switches[name].limits.receive_bytes if name in self.switches else None

    def shards(self, name: str) -> tuple[Shard, ...]:
        """The data planes of a switch that is there."""
        return self._root.shards if name == ROOT else self.switches[name].shards

    def groups(self, name: str, job: int) -> tuple[Address | None, ...]:
        """Groups to which the shards of a switch may multicast results of job number ``job``."""
        return tuple(
            group_of(shard.groups, job, shard.address[1]) if shard.groups is not None else None
            for shard in self.shards(name)
        )

    def check(self, job: JobSpec, rank: int, name: str, others: Mapping[int, str]) -> None:
        """Raises `ControlError` unless ``rank`` can join ``job`` through switch ``name``, where ``others`` (by rank)
        wait to join through theirs."""
        if name == ROOT:
            those = ", ".join(sorted(self.switches)) or "none is there now"
            why = f"its ranks join through the switches below this one ({those}), and all of a job's do, or none"
        elif name not in self.switches:
            raise ControlError(Code.UNAVAILABLE, f"switch {name!r} is not part of the tree now: try again")
        elif sum(other == name for other in others.values()) >= CHILDREN_MAX:
            why = f"switch {name!r} has {CHILDREN_MAX} of its ranks, and cannot have more: join through another"
        elif 0 < job.format.roundings < len(self.path(name)):
            most = count_text(job.format.roundings + 1, "level")
            why = f"a tree has at most {most} for {job.format.name}: join higher up, or choose another format"
        elif above := [r for r, other in others.items() if other != name and other in self.path(name)]:
            why = f"{ranks_text(above)} joined through a switch above {name!r}: all must join at the leaves"
        elif below := [r for r, other in others.items() if other != name and name in self._path_of(other)]:
            why = f"{ranks_text(below)} joined through a switch below {name!r}: all must join at the leaves"
        else:
            return
        raise ControlError(Code.FAILED_PRECONDITION, f"rank {rank} cannot join job {job.name!r} here: {why}")

    def _path_of(self, name: str) -> tuple[str, ...]:
        return self.path(name) if name in self.switches else ()

    def bindings(
        self, flat: Sequence[Binding], leaf_of: Sequence[str], parts: int, listening: Iterable[str]
    ) -> dict[str, tuple[Binding, ...]]:
        """The bindings of each switch, by name and shard.

        ``flat``: by shard, as for one switch with all workers, with the job's own seed; ``leaf_of``: by rank, where it
        joined; ``listening``: the leaves whose ranks can all take results from a group.
        """
        ranks: dict[str, list[int]] = {}
        for rank, leaf in enumerate(leaf_of):
            ranks.setdefault(leaf, []).append(rank)
        used = {name for leaf in ranks for name in self.path(leaf)}
        groups = {leaf: self.groups(leaf, flat[0].job) for leaf in listening}
        found: dict[str, list[Binding]] = {}
        for shard, binding in enumerate(flat):

            def branch(name: str, shard: int = shard, lease: Lease = binding.lease) -> Branch:
                address = self.shards(name)[shard].address
                if name in ranks:
                    group = groups[name][shard] if name in groups else None
                    return Branch(name, address, lease, ranks=tuple(ranks[name]), group=group)
                branches = tuple(branch(s.name, shard, lease) for s in self.below(name) if s.name in used)
                return Branch(name, address, Lease(lease.base, lease.slots * parts), branches=branches)

            for name, bound in bindings(binding, branch(ROOT), parts).items():
                found.setdefault(name, []).append(bound)
        return {name: tuple(of_shards) for name, of_shards in found.items()}
