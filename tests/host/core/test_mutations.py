"""Each rule of the protocol, broken on purpose in the core that gradients go through: the simulator finds it.

A mutant is the real engine, whose state or datagrams are changed between two calls in such a way that the rule is not
kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.sim.runs import check_run

from inagg_host.core import Engine, Epoch, Operation, Outgoing, RanksDisagree, Refused
from inagg_host.core.headers import GENERATION_AT, HEADER, SLOT_AT, TOKEN_AT
from inagg_wire import header as wire

Bytes = npt.NDArray[np.uint8]

RUNS = 300


class AnyToken(Engine):
    """Takes results of earlier epochs for its own."""

    def on_batch(self, shard: int, data: Bytes, size: int, now: float) -> list[Operation]:
        data = data.copy()
        for at in range(0, data.size, size):
            data[at + TOKEN_AT : at + TOKEN_AT + 4] = np.frombuffer(self.epoch.token.to_bytes(4, "big"), np.uint8)
        return super().on_batch(shard, data, size, now)


class AnyGeneration(Engine):
    """Takes a result for that of the block that uses the slot now, whichever use of it the result is of."""

    def on_batch(self, shard: int, data: Bytes, size: int, now: float) -> list[Operation]:
        data, lease, s = data.copy(), self.epoch.shards[shard].lease, self.state.shards[shard]
        for at in range(0, data.size, size):
            slot = int.from_bytes(data[at + SLOT_AT : at + SLOT_AT + 4].tobytes(), "big")
            for block in range(int(s["snd_una"]), int(s["snd_nxt"])):
                if lease.slot(block) == slot:
                    generation = lease.generation(block).to_bytes(4, "big")
                    data[at + GENERATION_AT : at + GENERATION_AT + 4] = np.frombuffer(generation, np.uint8)
        return super().on_batch(shard, data, size, now)


class TakesTwice(Engine):
    """Forgets which results it has taken, and so counts blocks twice."""

    def on_batch(self, shard: int, data: Bytes, size: int, now: float) -> list[Operation]:
        s, rows = self.state.shards[shard], self.state.rows[shard]
        out = np.arange(int(s["snd_una"]) - int(s["slots"]) // 2, int(s["snd_nxt"])) & (int(s["slots"]) - 1)
        rows["taken"][out] = rows["acked"][out] = False
        s["snd_una"] = max(int(s["first"]), int(s["snd_nxt"]) - int(s["slots"]) // 2)
        return super().on_batch(shard, data, size, now)


class NoWindow(Engine):
    """Sends block b without the result of block b - P: as if all before it had come."""

    def next_batch(self, now: float) -> list[Outgoing]:
        shards = self.state.shards
        before, flight = shards["snd_una"].copy(), shards["flight"].copy()
        shards["snd_una"], shards["flight"] = shards["snd_nxt"], 0
        try:
            return super().next_batch(now)
        finally:
            shards["snd_una"], shards["flight"] = before, shards["flight"] + flight


class NoScales(Engine):
    """Sends values before their scales are agreed on."""

    def next_batch(self, now: float) -> list[Outgoing]:
        for operation in self.operations:
            operation.lacking[:] = 0
        return super().next_batch(now)


class NeverAgain(Engine):
    """Sends nothing again: its clock stands still."""

    @property
    def deadline(self) -> float | None:
        return None

    def next_batch(self, now: float) -> list[Outgoing]:
        return super().next_batch(0.0)


class NoReplay(Engine):
    """Goes on in a new epoch where it was, and does not send again what others may still need."""

    def resume(self, epoch: Epoch, now: float) -> None:
        super().resume(epoch, now)
        for s in self.state.shards:
            s["snd_una"] = s["snd_nxt"] = s["snd_max"]


class ForgetsItsBlocks(Engine):
    """Sends other bytes in a new epoch than it did: its rows were used again."""

    def resume(self, epoch: Epoch, now: float) -> None:
        super().resume(epoch, now)
        self.rings[:, :, HEADER:] ^= 1


class OldToken(Engine):
    """Sends what it sends again with the token of the epoch before."""

    def resume(self, epoch: Epoch, now: float) -> None:
        before = self.epoch.token
        super().resume(epoch, now)
        self.rings[:, :, TOKEN_AT : TOKEN_AT + 4] = np.frombuffer(before.to_bytes(4, "big"), np.uint8)


class OtherSlot(Engine):
    """Uses a slot for two blocks that may both be out."""

    def next_batch(self, now: float) -> list[Outgoing]:
        batch = super().next_batch(now)
        for out in batch:
            for at in range(0, out.data.size, out.size):
                slot = wire.parse(out.data[at : at + out.size].tobytes()).header.slot & ~1
                out.data[at + SLOT_AT : at + SLOT_AT + 4] = np.frombuffer(slot.to_bytes(4, "big"), np.uint8)
        return batch


MUTANTS: list[Any] = [
    pytest.param(AnyToken, id="tokens are checked"),
    pytest.param(AnyGeneration, id="generations are checked"),
    pytest.param(TakesTwice, id="a result is taken once"),
    pytest.param(NoWindow, id="block b is sent after the result of b - P"),
    pytest.param(NoScales, id="values are sent after their scales are agreed on"),
    pytest.param(NeverAgain, id="what is lost is sent again"),
    pytest.param(NoReplay, id="an epoch begins where somebody needs it"),
    pytest.param(ForgetsItsBlocks, id="blocks are kept for a new epoch"),
    pytest.param(OldToken, id="a new epoch has a new token"),
    pytest.param(OtherSlot, id="no slot serves two blocks"),
]


def first_found(runs: int) -> str:
    """What the first run says that fails; empty if none does."""
    for seed in range(runs):
        try:
            check_run(seed)
        except (AssertionError, Refused, RanksDisagree, RuntimeError, IndexError) as found:
            return f"run {seed}: {found!r}"
    return ""


def test_as_it_is_nothing_is_found() -> None:
    assert first_found(RUNS) == ""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_broken_is_found(monkeypatch: pytest.MonkeyPatch, mutant: type[Engine]) -> None:
    monkeypatch.setattr("tests.host.sim.simulation.Engine", mutant)
    monkeypatch.setattr("tests.host.sim.simulation.EVENTS_MAX", 20_000)
    assert first_found(RUNS)
