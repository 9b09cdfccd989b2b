"""Executes what the Tofino compiler made of the program, p4/tofino/compiled.json: a frame goes in, frames come out.

Test equipment. As on the chip, a parser writes containers and a deparser reads them; fields are where the compiler put
them, so those that share a container share it here. All tables of a stage read what the stage before left. Which table
is next, by gateways, hits and misses, is what the assembler was told. It is a `p4.plane.Plane`, so it takes the entries
that a real switch takes, and a `rig.Wire`. It knows what our program uses and refuses the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.p4.bmv2.switch import Frame

from inagg_switch.binding import Binding
from inagg_switch.p4.builds import Build
from inagg_switch.p4.plane import Cell, Count, Group, Insert, SlotState, Update
from inagg_switch.p4.tofino.bfruntime_info import PORTS
from inagg_switch.p4.tofino.tofino_program import tags

from .containers import Containers
from .parsing import Deparser, Parser
from .tables import Entries, Pipeline, Registers

COMPILED: Final = Path(__file__).parents[3] / "p4" / "tofino" / "compiled.json"
PIPE_SLOTS: Final = 1 << 14
"""Of a program with the SLOT_BITS of its source."""
FRAME_BYTES_MIN: Final = 60
"""Of Ethernet (IEEE 802.3), without the checksum: shorter ones are padded before they are sent."""
EGRESS_FIELDS: Final = (2, 3, 1, 4, 3, 1, 1, 4, 2, 1, 1, 1, 1, 2)
"""Bytes of what the egress parser finds in front of a packet: port, ..., number of the copy, ..., length."""
EGRESS_PORT, EGRESS_COPY = 0, 8


@lru_cache(maxsize=1)
def compiled() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(COMPILED.read_text())
    return found


class Chip:
    """One pipe of a switch that runs the program; loopback ports come back into it."""

    def __init__(self, passes: int = 1) -> None:
        program = compiled()
        entries = {kind: Entries(rows) for kind, rows in program["entries"].items()}
        self.registers = Registers(program["registers"])
        self.loopback: set[int] = set()
        self.groups: dict[int, Group] = {}
        self._pass_slots = PIPE_SLOTS // 4
        self._parsers = {way: Parser(program["parsers"][way]) for way in ("ingress", "egress")}
        self._deparsers = {way: Deparser(program["deparsers"][way]) for way in ("ingress", "egress")}
        self._pipelines = {
            way: Pipeline(program["pipelines"][way], entries, self.registers) for way in ("ingress", "egress")
        }
        slots = PIPE_SLOTS if passes == 1 else self._pass_slots
        self.build = Build(f"inagg-nat8-{32 * passes}", ("nat8",), 32 * passes, slots, 32, COMPILED, COMPILED)

    # --- packets ---

    def receive(self, port: int, frame: bytes) -> list[Frame]:
        """A frame comes in at a port; what the egress sends for it, in order, loopback ports included. As from every
        port, it is `FRAME_BYTES_MIN` long at least."""
        frame = frame.ljust(FRAME_BYTES_MIN, b"\0")
        containers = Containers()
        front = port.to_bytes(2) + bytes(6) + bytes((port in self.loopback,)) + bytes(7)
        end = self._parsers["ingress"].parse(front + frame, containers)
        if end is None:
            return []
        self._pipelines["ingress"].run(containers, len(frame))
        deparser = self._deparsers["ingress"]
        if (deparser.told(containers, "drop_ctl") or 0) & 1:
            return []
        packet = deparser.header(containers) + (front + frame)[end:]
        out = []
        to = deparser.told(containers, "egress_unicast_port")
        if to is not None:
            out.append(self._leave(packet, to, 0))
        group = deparser.told(containers, "egress_multicast_group_0")
        if group is not None and group in self.groups:
            out += [self._leave(packet, copy.port, copy.instance) for copy in self.groups[group].replicas]
        return [frame for frame in out if frame is not None]

    def _leave(self, packet: bytes, port: int, instance: int) -> Frame | None:
        containers = Containers()
        values = {EGRESS_PORT: port, EGRESS_COPY: instance}
        front = b"".join(values.get(n, 0).to_bytes(size) for n, size in enumerate(EGRESS_FIELDS))
        end = self._parsers["egress"].parse(front + packet, containers)
        if end is None:
            return None
        self._pipelines["egress"].run(containers, len(packet))
        deparser = self._deparsers["egress"]
        if (deparser.told(containers, "drop_ctl") or 0) & 1:
            return None
        return Frame(port, deparser.header(containers) + (front + packet)[end:])

    # --- a wire ---

    def exchange(self, port: int, frame: bytes, expected: int) -> list[Frame]:
        """A frame in, all that leaves for it by ports with a host: `rig.Wire`."""
        found: list[Frame] = []
        ways = [Frame(port, frame)]
        while ways:
            for out in self.receive(*ways.pop(0)):
                (ways if out.port in self.loopback else found).append(out)
        return found

    # --- a plane ---

    def write(self, updates: Sequence[Update]) -> None:
        """See `Plane.write`."""
        for update in updates:
            what, insert = update.what, isinstance(update, Insert)
            if isinstance(what, Group):
                assert insert == (what.number not in self.groups), f"group {what.number}"
                if insert:
                    self.groups[what.number] = what
                else:
                    del self.groups[what.number]
            elif what.table == PORTS:
                ((_, port),) = what.match
                assert isinstance(port, int)
                assert what.params == (("loopback", 1),)
                (self.loopback.add if insert else self.loopback.remove)(port)
            else:
                written = [pipeline.write(what, insert) for pipeline in self._pipelines.values()]
                assert any(written), f"no table {what.table}"

    def clear(self, binding: Binding) -> None:
        """See `TofinoPlane.clear`."""
        for index, tag in tags(binding, self._pass_slots):
            self.registers.words["Ingress.slot_tag.tags"][index] = [tag, 0]
            self.registers.words["Ingress.slot_members.members"][index] = [0, 0]

    def counts(self, cells: Sequence[Cell]) -> Mapping[Cell, Count]:
        """See `Plane.counts`."""
        by_name = {name.rsplit(".", 1)[-1]: counts for name, counts in self.registers.counts.items()}
        return {cell: Count(*by_name.get(cell.counter, {}).get(cell.offset, (0, 0))) for cell in cells}

    def slots(self, first: int, count: int) -> list[SlotState] | None:
        """See `Plane.slots`."""
        return None

    @property
    def sentinels(self) -> tuple[int, ...]:
        """See `Plane.sentinels`."""
        return ()

    def died(self) -> str | None:
        """See `Plane.died`."""
        return None

    def close(self) -> None:
        """See `Plane.close`."""
