"""The software switch as a driver: one process per shard, each with its own socket and slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inagg_link.addresses import canonical
from inagg_link.sockopt import WILDCARDS
from inagg_wire.formats import CHILDREN_MAX, FORMATS

from ..binding import Address, Binding
from ..driver import Counters, DriverError, Limits, Shard, SlotWait
from .config import SoftwareConfig, Started
from .shard_process import ShardProcess, end_shards, start_shards

__all__ = ["SoftwareConfig", "SoftwareDriver", "Started"]


class SoftwareDriver:
    """Implements `driver.Driver`. It is made when its shards serve; raises `DriverError` if they cannot."""

    name = "software"

    def __init__(self, config: SoftwareConfig | None = None, shards: list[ShardProcess] | None = None) -> None:
        """``shards``: those of this configuration that `start_shards` started, which are this driver's to end from now
        on, and to replace, in this list. Without them it starts its own."""
        self.config = config = config or SoftwareConfig()
        self._shards = start_shards(config) if shards is None else shards
        try:
            self.started = tuple(shard.started() for shard in self._shards)
        except BaseException:
            self.close()
            raise
        self.limits = Limits(
            frozenset(FORMATS),
            CHILDREN_MAX,
            config.lanes,
            config.datagram_bytes,
            config.slots,
            trees=True,
            scatters=True,
            receive_bytes=min(started.receive_buffer_bytes for started in self.started),
        )
        self.shards = tuple(
            Shard(started.address, config.slots, started.groups, started.address[0] in WILDCARDS)
            for started in self.started
        )

    def admit(self, workers: Sequence[tuple[Address, ...]]) -> str | None:
        """See `Driver.admit`. A socket for IPv4 sends nothing to IPv6 addresses, and the other way round."""
        for addresses in workers:
            for shard, (host, _) in zip(self.shards, addresses, strict=True):
                if (":" in host) != (":" in shard.address[0]):  # literal addresses, and no IPv4 in IPv6 form
                    return _out_of_reach(host, shard)
        return None

    def bind(self, shard: int, binding: Binding) -> None:
        place, children = binding.place, tuple(canonical(address) for address in binding.children)
        if place is not None and place.uplink is not None:
            place = replace(place, uplink=replace(place.uplink, parent=canonical(place.uplink.parent)))
        self._shards[shard].ask("bind", replace(binding, children=children, place=place))

    def unbind(self, shard: int, job: int) -> None:
        self._shards[shard].ask("unbind", job)

    def counters(self, shard: int) -> Counters:
        counters: Counters = self._shards[shard].ask("counters")
        return counters

    def waiting(self, shard: int, job: int, limit: int) -> tuple[int, list[SlotWait]]:
        answer: tuple[int, list[SlotWait]] = self._shards[shard].ask("waiting", job, limit)
        return answer

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Descriptors, one per shard, that become readable when the shard has ended. For any thread."""
        return tuple(shard.sentinel for shard in self._shards)

    def died(self) -> str | None:
        """Sentence on the first shard that has ended though it was not told to; None if all serve. For any thread."""
        return next((death for shard in self._shards if (death := shard.death()) is not None), None)

    def restart(self, shard: int) -> None:
        """See `Driver.restart`. Captures and recordings go on in new files."""
        old, (host, port) = self._shards[shard], self.shards[shard].address
        if old.death() is None:
            raise DriverError(f"shard {shard} has not died")
        again = replace(old.config, host=host, port=port - shard, starts=old.config.starts + 1)
        old.stop()
        new = ShardProcess(again, shard)
        try:
            started = new.started()
        except BaseException:
            end_shards([new])
            raise
        self._shards[shard] = new
        old.close()
        self.started = (*self.started[:shard], started, *self.started[shard + 1 :])

    def pid_of(self, shard: int) -> int:
        """Id of the process that is the shard now."""
        return self.started[shard].pid

    def messages_of(self, shard: int) -> tuple[int, bool]:
        """How many messages have come from a shard, and whether another one is waited for. For any thread."""
        process = self._shards[shard]
        return process.messages, process.waited_for

    def kill(self, shard: int, because: str) -> None:
        """End a shard that does not answer; ``because`` is part of what `wait_for_death` says."""
        self._shards[shard].kill(because)

    def wait_for_death(self, shard: int) -> str:
        """Sentence on the end of a shard whose sentinel is readable: its end is known some time after."""
        return self._shards[shard].wait_for_death()

    def close(self) -> None:
        end_shards(self._shards)


def _out_of_reach(host: str, shard: Shard) -> str:
    """Sentence on a rank at ``host``, an address of the other family than that of the shard."""
    own, _ = shard.address
    if not shard.anywhere:
        return (
            f"{host} cannot be reached from {own}, where this switch sends from; INAGG_HOST says which address of its "
            "own a rank uses"
        )
    here, there, other = ("IPv6", "IPv4", "0.0.0.0") if ":" in own else ("IPv4", "IPv6", "[::]")
    return (
        f"{host} cannot be reached: this switch takes data over {here} alone. Name it by its {here} address in "
        f"INAGG_SWITCH, or, for {there}, start it with --data {other}"
    )
