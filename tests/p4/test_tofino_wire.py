"""What a Tofino's elements cost on the wire, worked out, is what p4/README.md says."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

P4 = Path(__file__).parents[2] / "p4"


@pytest.fixture(scope="module")
def wire() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(P4 / "tofino" / "wire.py"), run_name="tofino_wire"))


def test_the_table_of_the_page_is_the_one_that_is_worked_out(wire: SimpleNamespace) -> None:
    _, _, rest = (P4 / "README.md").read_text().partition("<!-- table of p4/tofino/wire.py -->\n")
    assert rest.startswith(wire.table() + "\n"), wire.table()


def test_an_element_takes_fewer_bytes_the_more_passes_there_are(wire: SimpleNamespace) -> None:
    sizes = [wire.ours(passes).wire_bytes for passes in (1, 2, 3, 4)]
    assert sizes == [122, 154, 186, 218]
    assert wire.ours(4).wire_bytes / 128 < 1.8


def test_what_is_passed_on_is_longer_by_what_the_program_carries(wire: SimpleNamespace) -> None:
    source = (P4 / "tofino" / "packet.p4").read_text()
    _, _, fields = source.partition("header carry_t {")
    bits = [int(field.split(">")[0].split("bit<")[1]) for field in fields.partition("}")[0].split(";")[:-1]]
    assert sum(bits) == 8 * wire.CARRY_BYTES
