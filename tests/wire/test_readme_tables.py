"""protos/README.md says in tables what the code says in tables; these tests compare the two."""

from __future__ import annotations

import re
from pathlib import Path

from tests.vectors.load import vectors

from inagg_wire.errors import NOTICED, Reason
from inagg_wire.formats import FORMATS
from inagg_wire.layout import (
    CARRIED,
    FIELDS,
    HEADER_BYTES,
    LANE_BITS,
    MAGIC,
    UDP_PAYLOAD_BYTES_1500,
    VERSION,
    Encoding,
    Kind,
    Op,
    datagram_bytes,
)
from inagg_wire.scale import SCALE_BIAS, unit

TEXT = (Path(__file__).resolve().parents[2] / "protos" / "README.md").read_text()


def tables(*columns: str) -> list[list[str]]:
    """The rows of all tables whose header begins with these columns, cell by cell."""
    rows: list[list[str]] = []
    inside = False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if tuple(cells[: len(columns)]) == columns:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= set("-"):
            rows.append(cells)
    return rows


def test_the_header_table_is_the_layout() -> None:
    rows = [(int(offset), int(size), name) for offset, size, name, _ in tables("offset", "size", "field", "meaning")]
    assert rows == [(f.offset, f.size, f.name) for f in FIELDS]
    assert f"a header of {HEADER_BYTES} bytes" in TEXT
    assert f"0x{MAGIC:04X}" in TEXT
    assert TEXT.startswith(f"# The inagg packet format, version {VERSION}\n")


def test_the_enumerations_are_the_layout_s() -> None:
    assert {int(row[0]): row[1] for row in tables("kind", "name")} == {k: k.name.lower() for k in Kind}
    assert {int(row[0]): row[1] for row in tables("op", "name")} == {o: o.name.lower() for o in Op}
    encodings = {int(row[0]): (row[1], int(row[2])) for row in tables("format", "name", "bits per lane")}
    assert encodings == {e: (e.name.lower(), LANE_BITS[e]) for e in Encoding}


def test_the_format_table_says_which_kind_and_op_carry_what() -> None:
    for row in tables("format", "name", "bits per lane"):
        said = {
            (Kind.CONTRIBUTION, Op.SUM): row[4] != "no",  # some only "from a switch"
            (Kind.RESULT, Op.SUM): row[5] == "yes",
            (Kind.CONTRIBUTION, Op.MAX): row[6] == "yes",
            (Kind.RESULT, Op.MAX): row[6] == "yes",
            # in words below the table
            (Kind.NOTICE, Op.SUM): 1 <= int(row[0]) <= 8,
            (Kind.NOTICE, Op.MAX): int(row[0]) == 9,
            (Kind.ACK, Op.SUM): row[5] == "yes",
            (Kind.ACK, Op.MAX): False,
        }
        assert said == {key: Encoding(int(row[0])) in carried for key, carried in CARRIED.items()}


def test_the_reason_tables_are_the_reasons_in_the_order_of_checks() -> None:
    rows = tables("reason", "name", "the datagram is refused if")
    assert [(int(row[0]), row[1]) for row in rows] == [(int(r), r.label) for r in Reason]
    assert {int(row[0]) for row in rows if row[3:] == ["yes"]} == {int(r) for r in NOTICED}


def workers_in(cell: str) -> range:
    first, last = map(int, cell.split(" to "))
    return range(first, last + 1)


def test_the_table_of_lanes_is_what_fits_1472_bytes() -> None:
    seen = []
    for name, workers, *numbers in tables("job format", "workers", "lanes"):
        fmt = FORMATS[name]
        for n in workers_in(workers):
            lanes = fmt.max_lanes(n, UDP_PAYLOAD_BYTES_1500)
            up, down = fmt.up, fmt.down(n)
            in_bytes = (datagram_bytes(up, lanes), datagram_bytes(down, lanes))
            per_lane = (LANE_BITS[up] / 8, LANE_BITS[down] / 8)
            assert [float(x) for x in numbers] == [lanes, *in_bytes, *per_lane, fmt.scale_lanes(lanes)], f"{name}, {n}"
            seen.append((name, n))
    assert sorted(seen) == sorted((name, n) for name, fmt in FORMATS.items() for n in range(1, fmt.workers_max + 1))


def test_the_table_of_job_formats() -> None:
    rows = tables("job format", "up", "down")
    assert [row[0] for row in rows] == list(FORMATS)
    for name, up, down, _, top, shift, f, refined in rows:
        fmt = FORMATS[name]
        for n in (*range(1, 300), *(m + more for m in (1 << k for k in range(9, 16)) for more in (-1, 0))):
            c = (n - 1).bit_length()
            values = {"0": 0, "c": c, "c + 1": c + 1, "30 - c": 30 - c, "28 - c": 28 - c}
            values |= {"2^(30-c)": 2 ** (30 - c), "2^(28-c)": 2 ** (28 - c)}
            one = unit(fmt, n, SCALE_BIAS)
            assert one is not None
            assert up == fmt.up.name.lower()
            assert fmt.down(n).name.lower() in re.findall(r"\w+", down)
            assert values.get(top, top) == fmt.top(n) or int(top) == fmt.top(n)
            assert values[shift] == fmt.result_shift(n)
            assert -one.exponent == (values[f] if f in values else int(f))
            assert refined == ("yes" if fmt.refined else "no")


def test_the_text_says_how_few_lanes_each_format_can_have() -> None:
    assert "the nat4 formats need at least 16 lanes, tern 32, the others 8" in " ".join(TEXT.split())
    least = {"nat4": 16, "nat4-nat8": 16, "nat4-reencode": 16, "tern": 32}
    for name, fmt in FORMATS.items():
        lanes = next(lanes for lanes in range(8, 256, 8) if fmt.scale_lanes(lanes))
        assert lanes == fmt.min_lanes == least.get(name, 8)


def test_the_worked_example_is_the_first_golden_contribution() -> None:
    golden = vectors("contributions")[0]["datagram"]
    spaced = bytes.fromhex(golden).hex(" ")
    assert f"    {spaced}\n" in TEXT
    assert "".join(row[0] for row in tables("bytes", "field", "why")).replace(" ", "") == golden
    codes = [row[7] for row in tables("lane", "value", "y")]
    assert "".join(codes) == golden[2 * HEADER_BYTES :]
