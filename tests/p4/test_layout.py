"""The constants of the P4 programs are those of the wire format."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from types import ModuleType

import pytest

from inagg_switch.p4 import entries
from inagg_switch.p4.bmv2 import bmv2_program, leaf_program
from inagg_switch.p4.builds import builds
from inagg_switch.p4.counters import LINK_REFUSED
from inagg_switch.p4.tofino import tofino_program
from inagg_wire import formats, layout
from inagg_wire.errors import Reason
from inagg_wire.layout import Encoding, Kind, Op
from inagg_wire.noise import group_table

P4 = Path(__file__).parents[2] / "p4"
CONSTANT = re.compile(r"^const (?:int|bit<\d+>) (\w+) = (0x[0-9A-F]+|\d+);", re.MULTILINE)


def constants(name: str) -> dict[str, int]:
    """The constants of a source below p4/."""
    return {found[1]: int(found[2], 0) for found in CONSTANT.finditer((P4 / name).read_text())}


LAYOUT = constants("include/layout.p4")
LINK_NAMES = ("MALFORMED", "IP_CHECKSUM", "FRAGMENT")


@pytest.mark.parametrize(
    ("prefix", "members"),
    [
        ("REASON_", {reason.name: int(reason) for reason in Reason} | {"NONE": 0}),
        ("FORMAT_", {encoding.name: int(encoding) for encoding in Encoding}),
        ("KIND_", {kind.name: int(kind) for kind in Kind}),
        ("OP_", {op.name: int(op) for op in Op}),
    ],
)
def test_numbers_of_the_program_are_those_of_the_wire(prefix: str, members: dict[str, int]) -> None:
    assert {name[len(prefix) :]: value for name, value in LAYOUT.items() if name.startswith(prefix)} == members


def test_header_constants_are_those_of_the_wire() -> None:
    assert LAYOUT["MAGIC"] == layout.MAGIC
    assert LAYOUT["VERSION"] == layout.VERSION
    assert LAYOUT["HEADER_BYTES"] == layout.HEADER_BYTES


@pytest.mark.parametrize(
    ("source", "module", "names"),
    [
        ("include/layout.p4", entries, ("TO_SWITCH", "TO_DATA_PORT")),
        ("include/layout.p4", formats, ("CHILDREN_MAX",)),
        (
            "include/layout.p4",
            bmv2_program,
            ("SENT_CELLS", "SENT_NOTICE", "SENT_ACK", "INVALID_CELLS", "INVALID_BITS"),
        ),
        ("include/layout.p4", leaf_program, ("PARTIAL_CELLS",)),
        ("tofino/packet.p4", tofino_program, ("OUTCOME_CELLS", "ANSWER_CELLS", "NOBODY", "MODE_MAX", "CHUNK")),
    ],
)
def test_what_program_and_control_plane_call_by_one_name_is_one_number(
    source: str, module: ModuleType, names: tuple[str, ...]
) -> None:
    found = constants(source)
    assert {name: found[name] for name in names} == {name: int(getattr(module, name)) for name in names}


def test_places_of_passes_are_those_of_the_control_plane() -> None:
    found = constants("tofino/packet.p4")
    assert (found["PLACE_FIRST"], found["PLACE_LATER"]) == (tofino_program.FIRST, tofino_program.LATER)


@pytest.mark.parametrize(
    ("prefix", "names"), [("OUTCOME_", tofino_program.Outcome), ("ANSWER_", tofino_program.Answered)]
)
def test_cells_of_the_tofino_counters_are_those_of_the_control_plane(prefix: str, names: type[IntEnum]) -> None:
    found = constants("tofino/packet.p4")
    assert {name.name: found[prefix + name.name] for name in names} == {name.name: int(name) for name in names}


def test_the_bits_of_a_count_of_invalid_codes_are_enough_for_all_lanes_and_all_are_counted() -> None:
    most = max(build.lanes for build in builds().values())
    assert most.bit_length() == LAYOUT["INVALID_BITS"] <= LAYOUT["INVALID_CELLS"]
    counted = re.findall(r"COUNT_INVALID_BIT\((\d+)\)", (P4 / "bmv2/respond.p4").read_text())
    assert [int(bit) for bit in counted] == list(range(LAYOUT["INVALID_BITS"]))


def test_every_reason_has_a_cell() -> None:
    assert max(LAYOUT[name] for name in LAYOUT if name.startswith(("REASON_", "LINK_"))) < LAYOUT["REASONS"]


def test_fields_of_the_header_are_those_of_the_wire() -> None:
    text = (P4 / "include/headers.p4").read_text()
    body = re.search(r"header inagg_t \{(.*?)\}", text, re.DOTALL)
    assert body is not None
    fields = [(name, int(bits)) for bits, name in re.findall(r"bit<(\d+)> (\w+);", body[1])]
    assert fields == [(field.name, 8 * field.size) for field in layout.FIELDS]


def test_what_the_control_plane_calls_the_reasons_of_the_link_is_where_the_program_counts_it() -> None:
    places = {f"LINK_{name}": cell.offset for name, cell in zip(LINK_NAMES, LINK_REFUSED.values(), strict=True)}
    assert places == {name: value for name, value in LAYOUT.items() if name.startswith("LINK_")}


def test_reasons_of_the_link_are_no_reasons_of_the_wire() -> None:
    assert {LAYOUT[name] for name in LAYOUT if name.startswith("LINK_")}.isdisjoint(map(int, Reason))


def test_noise_constants_make_the_groups_of_256_lanes() -> None:
    bits = constants("include/noise.p4")
    for group, word in enumerate(group_table(256)):
        mine = 0
        for bit in range(6):
            mine ^= bits[f"NOISE_{1 << bit}"] if group >> bit & 1 else 0
        assert mine == int(word), group
