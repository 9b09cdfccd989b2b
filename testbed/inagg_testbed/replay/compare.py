"""Give a core what a recording says that a switch took in, and compare what it gives out, byte for byte.

What a switch gives out depends on the order in which it takes things in, not on how they were batched; in which order
it answers the datagrams of one batch is its own affair. So an answer is looked for among those that the core has given
to the same address and that have the same header.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.model import Model
from inagg_switch.binding import Address, Binding
from inagg_switch.driver import DriverError
from inagg_wire.errors import WireError
from inagg_wire.header import parse
from inagg_wire.layout import HEADER_BYTES

from .recording import Begin, Bind, End, Event, Received, RecordingError, Sent, Unbind

Answer = tuple[bytes, tuple[Address, ...]]


class Core(Protocol):
    """A switch without a network."""

    def bind(self, binding: Binding) -> None:
        """Admit a job."""

    def unbind(self, job: int) -> None:
        """Drop it."""

    def take(self, received: Received) -> Iterator[Answer]:
        """Take datagrams in; what to send, and to whom."""


class ModelCore(Model):
    """The reference model, a datagram at a time."""

    def take(self, received: Received) -> Iterator[Answer]:
        for datagram in received.data.reshape(-1, received.size):
            for output in self.receive(datagram.tobytes(), received.source):
                yield output.data, output.to


class FastCore(Aggregator):
    """The batch aggregator, which the software switch runs, in the batches of the recording."""

    def take(self, received: Received) -> Iterator[Answer]:
        for send in self.receive(received.data, received.size, received.source, 0.0):
            for datagram in send.data.reshape(-1, send.size):
                yield datagram.tobytes(), send.to


def make_core(name: str, begin: Begin) -> Core:
    """The core called "model" or "fast", as large as the switch was. Raises `RecordingError` if none can be so."""
    try:
        return ModelCore() if name == "model" else FastCore(begin.slots, begin.lanes)
    except (ValueError, TypeError, MemoryError) as error:
        raise RecordingError(f"there is no switch with {begin.slots} slots of {begin.lanes} lanes: {error}") from error


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not the same."""

    number: int
    """Number of the recorded datagram in the file, from 1; 0: there is none."""
    to: Address
    what: str


@dataclass(slots=True)
class Comparison:
    """Result of a recording's replay on a core."""

    received: int = 0
    """Datagrams taken in."""
    compared: int = 0
    """Datagrams given out that were compared."""
    compared_bytes: int = 0
    not_sent: int = 0
    """Computed, and known not to have been sent for want of room in the kernel."""
    whole: bool = False
    """The recording has all; else it is compared as far as it goes."""
    why_not_whole: str = ""
    difference: Difference | None = None
    jobs: list[Binding] = field(default_factory=list)


def compare(core: Core, sequence: Iterable[Event]) -> Iterator[Comparison]:
    """Replay events into ``core``; yields the comparison so far after each batch, and at the end or the first
    difference for the last time. Raises `RecordingError` for a job that the core does not admit.
    """
    so_far = Comparison()
    given: dict[tuple[Address, bytes], deque[bytes]] = defaultdict(deque)
    for event in sequence:
        match event:
            case Bind(binding):
                try:
                    core.bind(binding)
                except (DriverError, ValueError) as error:
                    raise RecordingError(f"job {binding.job} cannot be admitted again: {error}") from error
                so_far.jobs.append(binding)
            case Unbind(job):
                core.unbind(job)
            case Received():
                so_far.received += event.data.size // event.size
                for payload, to in core.take(event):
                    for address in to:
                        given[address, payload[:HEADER_BYTES]].append(payload)
                yield so_far
            case Sent():
                so_far.compared += 1
                so_far.compared_bytes += len(event.payload)
                so_far.difference = _check(event, given)
                if so_far.difference is not None:
                    yield so_far
                    return
            case End():
                so_far.whole, so_far.why_not_whole = event.whole, event.why
                so_far.not_sent = event.missing
                _check_rest(so_far, given)
    yield so_far


def _check(sent: Sent, given: dict[tuple[Address, bytes], deque[bytes]]) -> Difference | None:
    """Compare what was sent with what the core gave, and take it from there."""
    key = sent.to, sent.payload[:HEADER_BYTES]
    waiting = given.get(key)
    if not waiting:
        return Difference(sent.number, sent.to, f"the switch sent {describe(sent.payload)}, and the replay does not")
    computed = waiting.popleft()
    if not waiting:
        del given[key]
    if computed == sent.payload:
        return None
    place = next((i for i, (a, b) in enumerate(zip(computed, sent.payload, strict=False)) if a != b), len(computed))
    recorded_byte, computed_byte = sent.payload[place : place + 1].hex(), computed[place : place + 1].hex()
    return Difference(
        sent.number,
        sent.to,
        f"{describe(sent.payload)}: byte {place} of {len(sent.payload)} is {recorded_byte or 'missing'} in the "
        f"recording and {computed_byte or 'missing'} in the replay",
    )


def _check_rest(so_far: Comparison, given: dict[tuple[Address, bytes], deque[bytes]]) -> None:
    """Judge what the core gave beyond what was sent: it found no room then, or the file has no more, or it differs."""
    extra = sum(map(len, given.values()))
    if so_far.whole and extra != so_far.not_sent:
        (to, _), payloads = next(iter(given.items())) if given else ((("", 0), b""), deque([b""]))
        what = f"the replay sends {extra} datagrams more than the switch, which could not send {so_far.not_sent}"
        so_far.difference = Difference(0, to, f"{what}; the first is {describe(payloads[0])}" if extra else what)


def describe(payload: bytes) -> str:
    """A datagram for people, by its header."""
    try:
        h = parse(payload).header
    except WireError as error:
        return f"a datagram of {len(payload)} bytes that is none of ours ({error})"
    return f"{h.kind.name.lower()} of job {h.job}, slot {h.slot}, generation {h.generation}"
