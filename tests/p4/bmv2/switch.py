"""A bmv2 `simple_switch`, interpreted: what the JSON says, one packet at a time.

Test equipment, for machines without any P4 tool. It knows what our programs use and refuses the rest; where it and bmv2
differ, it is wrong. It is a `p4.plane.Plane`, so it takes the entries that a real switch takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from inagg_switch.p4.builds import Build
from inagg_switch.p4.plane import Cell, Count, Entry, Group, Insert, SlotState, Update

from .expressions import Value, compile_value
from .layout import Field, Json, Layout, Memory, State
from .parsing import Parser
from .primitives import DROP_PORT, Compiler
from .tables import Row, Table, compile_table


class Frame(NamedTuple):
    """An Ethernet frame that leaves, and where."""

    port: int
    data: bytes


@dataclass
class Conditional:
    expression: Value
    yes: str | None
    no: str | None


@dataclass
class Pipeline:
    start: str | None
    nodes: dict[str, Table | Conditional]

    def copy(self) -> Pipeline:
        """One whose tables have entries of their own."""
        nodes = {name: node.copy() if isinstance(node, Table) else node for name, node in self.nodes.items()}
        return Pipeline(self.start, nodes)

    @property
    def tables(self) -> dict[str, Table]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Table)}

    def run(self, state: State) -> None:
        name = self.start
        while name is not None and not state.exited:
            node = self.nodes[name]
            if isinstance(node, Table):
                name = node.apply(state)
            else:
                name = node.yes if node.expression(state) else node.no
        state.exited = False


@dataclass
class Checksum:
    """An Internet checksum (RFC 1071) over fields."""

    applies: Value
    target: Field
    packed: object
    verify: bool
    update: bool

    def value(self, state: State) -> int:
        data = self.packed(state)  # type: ignore[operator]
        total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return total ^ 0xFFFF


class Program:
    """A program as functions of the packet. It remembers nothing, so switches can share it."""

    def __init__(self, config: bytes) -> None:
        self.json: Json = json.loads(config)
        self.layout = Layout.of(self.json)
        self.parser = Parser(self.layout, self.json)
        compiler = Compiler(self.layout, self.json)
        actions = {action["id"]: compiler.action(action) for action in self.json["actions"]}
        self.ingress, self.egress = (self._pipeline(p, actions) for p in self.json["pipelines"])
        self.checksums = [self._checksum(c, compiler) for c in self.json["checksums"]]

    def _pipeline(self, program: Json, actions: Json) -> Pipeline:
        nodes: dict[str, Table | Conditional] = {}
        for table in program["tables"]:
            nodes[table["name"]] = compile_table(self.layout, table, actions)
        for test in program["conditionals"]:
            expression = compile_value(self.layout, test["expression"])
            nodes[test["name"]] = Conditional(expression, test["true_next"], test["false_next"])
        return Pipeline(program["init_table"], nodes)

    def _checksum(self, program: Json, compiler: Compiler) -> Checksum:
        calculation = compiler.calculations[program["calculation"]]
        if calculation["algo"] != "csum16":
            raise NotImplementedError(f"the checksum {calculation['algo']}")
        return Checksum(
            compile_value(self.layout, program["if_cond"]),
            self.layout.field(*program["target"]),
            compiler.packed(calculation),
            program["verify"],
            program["update"],
        )


@lru_cache(maxsize=6)
def compiled(build: Build) -> Program:
    """The program of ``build``. Tests have many switches of few programs, and to read one takes a while."""
    return Program(build.program())


class Bmv2:
    """One switch that runs the program of ``build``."""

    def __init__(self, build: Build) -> None:
        program = compiled(build)
        self.layout, self.parser, self.checksums = program.layout, program.parser, program.checksums
        self.memory = Memory.of(program.json)
        self.ingress, self.egress = program.ingress.copy(), program.egress.copy()
        self.tables = self.ingress.tables | self.egress.tables
        self.groups: dict[int, Group] = {}
        self._standard = {name: f.place for name, f in self.layout.headers["standard_metadata"].fields.items()}

    # --- packets ---

    def receive(self, port: int, frame: bytes) -> list[Frame]:
        """A frame comes in at a port; what leaves for it, in order."""
        state, at = self.layout.new_state(self.memory), self._standard
        state.values[at["ingress_port"]] = port
        state.values[at["packet_length"]] = len(frame)
        self.parser.parse(frame, state)
        for checksum in self.checksums:
            if checksum.verify and checksum.applies(state):
                wrong = state.values[checksum.target.place] != checksum.value(state)
                state.values[at["checksum_error"]] |= wrong
        self.ingress.run(state)
        group = state.values[at["mcast_grp"]]
        if group:
            copies = self.groups[group].replicas if group in self.groups else ()
            out = [self._leave(state.copy(), copy.port, copy.instance) for copy in copies]
        elif state.values[at["egress_spec"]] == DROP_PORT:
            out = []
        else:
            out = [self._leave(state, state.values[at["egress_spec"]], 0)]
        return [frame for frame in out if frame is not None]

    def _leave(self, state: State, port: int, instance: int) -> Frame | None:
        at = self._standard
        state.values[at["egress_port"]] = port
        state.values[at["egress_rid"]] = instance
        state.values[at["egress_spec"]] = 0
        self.egress.run(state)
        if state.values[at["egress_spec"]] == DROP_PORT:
            return None
        for checksum in self.checksums:
            if checksum.update and checksum.applies(state):
                state.values[checksum.target.place] = checksum.value(state)
        return Frame(port, self.parser.deparse(state))

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
            else:
                table, row = self._row(what)
                (table.insert if insert else table.delete)(row)

    def _row(self, entry: Entry) -> tuple[Table, Row]:
        table = self.tables[entry.table]
        return table, table.entry(entry.match, entry.priority, entry.action, dict(entry.params))

    def counts(self, cells: Sequence[Cell]) -> Mapping[Cell, Count]:
        """See `Plane.counts`."""
        return {cell: Count(*self.memory.counters[cell.counter][cell.offset]) for cell in cells}

    def slots(self, first: int, count: int) -> list[SlotState] | None:
        """See `Plane.slots`."""
        columns = [self.memory.registers[f"slot_{name}"][first : first + count] for name in SlotState._fields]
        return [SlotState(*row) for row in zip(*columns, strict=True)]

    @property
    def sentinels(self) -> tuple[int, ...]:
        """See `Plane.sentinels`."""
        return ()

    def died(self) -> str | None:
        """See `Plane.died`."""
        return None

    def close(self) -> None:
        """See `Plane.close`."""

    # --- a wire ---

    def exchange(self, port: int, frame: bytes, expected: int) -> list[Frame]:
        """A frame in, all that leaves for it: `rig.Wire`."""
        return self.receive(port, frame)
