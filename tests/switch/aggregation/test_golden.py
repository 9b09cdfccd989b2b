"""The golden vectors: conversations, results and re-encodings that any switch must reproduce byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.vectors.load import Vector, label, vectors

from inagg_switch.aggregation.kernels import emit
from inagg_switch.aggregation.uplink import mix
from inagg_switch.aggregation.validation import malformed
from inagg_switch.binding import Address, Binding
from inagg_wire.errors import Reason
from inagg_wire.formats import job_format
from inagg_wire.layout import LANE_MULTIPLE, Encoding, Op
from inagg_wire.noise import GROUP_LANES, group_table, switch_word
from inagg_wire.payload import pack
from inagg_wire.slots import Lease

from .pair import Pair
from .world import addresses


def address(pair: list[Any]) -> Address:
    return str(pair[0]), int(pair[1])


def binding_of(job: Vector) -> Binding:
    lease = Lease(job["lease"]["base"], job["lease"]["slots"])
    workers = tuple(address(worker) for worker in job["workers"])
    fmt, block = job_format(job["format"]), job["resume_block"]
    return Binding(
        job["job"], job["token"], fmt, job["lanes"], lease, job["seed"], workers, block, scatters=job["scatters"]
    )


class Trace:
    """Plays a trace to model and aggregator, step by step."""

    def __init__(self, steps: list[Vector]) -> None:
        bindings = [binding_of(step["bind"]) for step in steps if "bind" in step]
        last = max(binding.lease.base + binding.lease.slots for binding in bindings)
        self.pair = Pair(1 << (last - 1).bit_length(), max(binding.lanes for binding in bindings))

    def play(self, step: Vector) -> None:
        if "bind" in step:
            self.pair.bind(binding_of(step["bind"]))
        elif "unbind" in step:
            self.pair.unbind(step["unbind"])
        else:
            self.datagram(step)

    def totals(self) -> dict[str, int]:
        """What the outcomes of a trace are counted under."""
        c = self.pair.aggregator.counters()
        jobs = c.jobs.values()
        return {
            "contributions": sum(sum(j.contributions) for j in jobs),
            "result": sum(j.results for j in jobs),
            "resend": sum(sum(j.resends) for j in jobs),
            "drop": sum(c.drops.values()),
            "invalid_codes": sum(j.invalid_codes for j in jobs),
        } | {reason.label: c.drops.get(reason, 0) for reason in Reason}

    def datagram(self, step: Vector) -> None:
        data = bytes.fromhex(step["datagram"])
        if not data:  # no batch can hold it: `Counters.empty` of the link
            assert malformed(np.zeros(0, np.uint8)) == step["reason"] == Reason.TOO_SHORT
            return
        before = self.totals()
        outputs = self.pair.receive(data, address(step["source"]))
        self.pair.check()
        assert [(output.data.hex(), output.to) for output in outputs] == [
            (output["datagram"], tuple(map(address, output["to"]))) for output in step["outputs"]
        ], step["what"]
        changed = {name: now - before[name] for name, now in self.totals().items() if now != before[name]}
        outcome = step["outcome"]
        want = {"contributions": 1} if outcome in ("absorbed", "result") else {}
        if outcome != "absorbed":
            want[outcome] = 1
        if outcome == "drop":
            want[Reason(step["reason"]).label] = 1
        if step["invalid_codes"]:
            want["invalid_codes"] = step["invalid_codes"]
        assert changed == want, step["what"]


@pytest.mark.parametrize("vector", vectors("traces"), ids=label)
def test_a_conversation_goes_as_written(vector: Vector) -> None:
    trace = Trace(vector["steps"])
    for step in vector["steps"]:
        trace.play(step)


@pytest.mark.parametrize("vector", vectors("results"), ids=label)
def test_contributions_give_the_result(vector: Vector) -> None:
    n, slot = len(vector["contributions"]), vector["slot"]
    lanes = len(vector["codes"])
    fmt, op = job_format(vector["format"]), Op(vector["op"])
    while fmt.lanes_for(op, lanes) < len(vector["codes"]):
        lanes += LANE_MULTIPLE
    lease, block = Lease(slot & ~1, 2), 2 * (vector["generation"] - 1) + (slot & 1)
    binding = Binding(vector["job"], vector["token"], fmt, lanes, lease, vector["seed"], addresses(n), block)
    pair = Pair(1 << (slot | 1).bit_length(), lanes)
    pair.bind(binding)
    outputs = pair.round(binding, [bytes.fromhex(contribution) for contribution in vector["contributions"]])
    assert [(output.data.hex(), output.to) for output in outputs] == [(vector["result"], binding.children)]
    sums = pair.model.slots[slot].acc
    assert sums is not None
    assert sums[: len(vector["sums"])].tolist() == vector["sums"]
    assert pair.aggregator.counters().jobs[vector["job"]].invalid_codes == vector["invalid_codes"]


@pytest.mark.parametrize("vector", vectors("partials"), ids=label)
def test_partial_sums_are_rounded_as_written(vector: Vector) -> None:
    fmt, sums = job_format(vector["format"]), np.array(vector["sums"], np.int32)
    out, noise = np.zeros(len(sums), np.uint8), np.zeros(len(sums), np.uint32)
    word = np.uint32(switch_word(vector["seed"], vector["slot"], vector["generation"], 0))
    key_0, key_1 = (int(k, 16) for k in vector["key"])
    mix(noise, np.repeat(group_table(len(sums)), GROUP_LANES), word, len(sums), key_0, key_1)
    emit(int(fmt.up), out, sums, len(sums), noise, np.uint32(0), fmt.partial_shift(vector["workers"]))
    want = pack(fmt.up, np.array(vector["codes"], np.uint32))
    assert out[: len(want)].tobytes() == want


@pytest.mark.parametrize("vector", vectors("reencode"), ids=label)
def test_sums_are_encoded_again_as_written(vector: Vector) -> None:
    fmt, sums, encoding = job_format(vector["format"]), vector["sums"], Encoding(vector["encoding"])
    out = np.zeros(4 * len(sums), np.uint8)
    word = switch_word(vector["seed"], vector["slot"], vector["generation"], 0)
    noise = np.repeat(group_table(len(sums)), GROUP_LANES)
    shift = fmt.result_shift(vector["workers"])
    emit(int(encoding), out, np.array(sums, np.int32), len(sums), noise, np.uint32(word), shift)
    want = pack(encoding, np.array(vector["codes"], np.uint32))
    assert out[: len(want)].tobytes() == want
