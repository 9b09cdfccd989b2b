"""Tables at 80 columns: nothing is hidden, neither by an ellipsis nor beyond the edge."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console

from inagg_testbed.bench import allreduce_command, hosts_command, recovery_command, sharing_command
from inagg_testbed.bench.results import Bars, Line, Table, show
from inagg_testbed.progress import Doing
from inagg_testbed.tables import console, print_table


def printed(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80, **options: Any) -> list[str]:
    out = Console(width=width, file=io.StringIO())
    print_table(out, "a title", columns, rows, **options)
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    return lines


WIDE = [f"column {number}" for number in range(12)]
CELLS = [[f"{row}:{number}:280,700,000" for number in range(12)] for row in range(3)]


def test_a_table_that_is_too_wide_becomes_several_with_the_same_first_columns() -> None:
    lines = printed(WIDE, CELLS, keys=2)
    text = "\n".join(lines)
    assert text.count("column 0") == text.count("column 1 ") > 1
    assert all(cell in text for row in CELLS for cell in row)


def test_in_a_pipe_a_row_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(console(), "", ["name", "state"], [["here", "runs " + "a very long command " * 20 + "here"]])
    console().print("a sentence " * 20)
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "here" in line and "long" in line).count("long") == 20
    assert lines[-1] == "a sentence " * 20


def test_a_table_that_fits_is_one() -> None:
    lines = printed(WIDE[:4], [row[:4] for row in CELLS], caption="what it means")
    assert "\n".join(lines).count("column 0") == 1
    assert lines[-1].strip() == "what it means"


def test_a_cell_that_is_wider_than_the_terminal_takes_more_lines() -> None:
    long = "x" * 200
    lines = printed(["system", "why"], [["Gloo", long]])
    assert "".join(lines).count("x") == 200


FIGURES = ("figure", "reference", "measured", "within")
SENTENCE = "the second moment of what the switch has rounded again, over eight workers and a tree"


def test_a_long_first_column_is_folded_before_values_are_moved_to_another_table() -> None:
    """A figure stands beside its reference."""
    lines = printed(FIGURES, [[SENTENCE, "at most 1.125", "1.12501", "yes"], ["short", "0", "0", "yes"]])
    assert any("1.125 " in line and "1.12501" in line and "yes" in line for line in lines)
    assert "\n".join(lines).count("figure") == 1


def test_a_number_is_never_broken() -> None:
    """Where the first columns leave no room, there are lines of a name and a value."""
    cells = [["2", "inagg", "float32", "14,560", "1,234.56"], ["4", "gloo", "float32", "14,560", ""]]
    lines = printed(["workers", "system", "format", "bytes up", "ms"], cells, width=40, keys=3, caption="what it is")
    assert "ms: 1,234.56" in lines
    assert lines.count("bytes up: 14,560") == 2
    assert lines.count("ms: ") == 0
    assert "what it is" in lines


def test_figures_on_a_narrow_terminal_do_not_become_a_table_for_each_column() -> None:
    lines = printed(FIGURES, [[SENTENCE, "at most 1.125", "1.12501", "yes"]], width=36)
    assert "measured: 1.12501" in lines


def test_a_column_that_is_empty_takes_no_room() -> None:
    assert "to gloo" not in "\n".join(printed(["system", "ms", "to gloo"], [["inagg", "1", ""]]))


LARGE = {
    "workers": 32, "system": "inagg-tree-reencode", "format": "dith8-exact", "elements": 1 << 28, "median_s": 1234.5,
    "elements_per_s": 562e6, "wire_bytes_up": 10**10, "wire_bytes_down": 10**10, "share_of_link": 0.983,
    "ratio_to_gloo": 12.25, "tree_to_flat": 0.5, "tree_reencode_to_flat": 0.5, "ratio_to_lossless": 1.0,
    "contributed_to_plain": 1.0, "host_bytes_up": 10**10, "host_bytes_down": 10**10, "error": 1e-3, "case": "two jobs",
    "shares": [0.5, 0.5], "jain": 0.999, "together": 1.98, "resent": 10**6, "timeouts": 10**6, "rtt_s": 0.01,
    "recovery_s": 1.0, "of_which_start_s": 1.0, "restarts": 1, "runs": 5, "failed": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "module", "measures"),
    [
        (allreduce_command.allreduce, "inagg_testbed.bench.allreduce", "bench_allreduce"),
        (hosts_command.hosts, "inagg_testbed.bench.hosts", "bench_hosts"),
        (sharing_command.sharing, "inagg_testbed.bench.sharing", "bench_sharing"),
        (recovery_command.recovery, "inagg_testbed.bench.recovery", "bench_recovery"),
    ],
)
def test_benchmarks_hide_nothing(
    command: Any, module: str, measures: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(f"{module}.{measures}", lambda *_, **__: iter([LARGE]))
    monkeypatch.setattr("inagg_testbed.topology.opening.require_root", lambda _: None)
    ways = ["--way", "contributed"] if command is allreduce_command.allreduce else []
    command.main(ways, standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    for value in ("12.25", "10,000,000,000") if "elements" in "".join(lines) and ways else ():
        assert value in "".join(lines)


def test_rows_that_were_measured_are_shown_though_the_next_is_broken_off(capsys: pytest.CaptureFixture[str]) -> None:
    def lines(_: Doing) -> Iterator[Line]:
        yield {"system": "inagg"}
        raise KeyboardInterrupt

    table = Table("a title", [("system", lambda r: r["system"])], Bars("", lambda _: None))
    with pytest.raises(KeyboardInterrupt):
        show(lines, table, total=2, as_json=False)
    out = capsys.readouterr().out
    assert "inagg" in out
    assert "a title (broken off)" in " ".join(out.split())
