"""The golden vectors are what generate.py writes, and as small and readable as they promise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.vectors import generate
from tests.vectors.load import FOLDER, load, names, vectors

from inagg_wire.errors import Reason
from inagg_wire.formats import FORMATS


def test_the_committed_files_are_what_generate_writes() -> None:
    assert generate.differences() == [], "run: make vectors"


def test_generating_twice_gives_the_same_bytes() -> None:
    assert generate.generate() == generate.generate()


def test_all_files_together_are_below_one_megabyte() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) < 1_000_000


@pytest.mark.parametrize("name", names())
def test_each_file_and_each_vector_says_what_it_means(name: str) -> None:
    content = load(name)
    assert content["meaning"].endswith(".")
    sections = {key: value for key, value in content.items() if key != "meaning"}
    assert sections
    for section in sections.values():
        whats = [vector["what"] for vector in section]
        assert all(whats)
        assert len(whats) == len(set(whats)), "two vectors say the same of themselves"


@pytest.mark.parametrize("name", names())
def test_the_readme_has_a_part_on_each_file(name: str) -> None:
    assert f"### {name}.json\n" in (FOLDER / "README.md").read_text()


def numbers(value: Any) -> list[int | float]:
    """All numbers in a JSON value."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)):
        return [value]
    return [n for v in (value.values() if isinstance(value, dict) else value) for n in numbers(v)]


@pytest.mark.parametrize("name", names())
def test_numbers_are_integers_that_every_json_parser_reads_exactly(name: str) -> None:
    assert all(isinstance(n, int) and abs(n) < 2**53 for n in numbers(load(name)))


def test_each_reason_that_bytes_can_show_has_an_invalid_header() -> None:
    shown = {v["reason"] for v in vectors("headers", "invalid")}
    assert shown == {int(r) for r in Reason if r < 32}


def test_each_reason_is_reached_by_a_trace() -> None:
    reached = {step.get("reason") for trace in vectors("traces") for step in trace["steps"]} - {None}
    assert reached == {int(r) for r in Reason}


@pytest.mark.parametrize("name", ["codes", "contributions", "results", "decode"])
def test_each_job_format_is_there(name: str) -> None:
    same_up = {"nat4-nat8", "dith8-exact"} if name == "codes" else set()
    assert {v["format"] for v in vectors(name)} == FORMATS.keys() - same_up


def test_results_are_there_for_many_numbers_of_workers() -> None:
    assert {v["workers"] for v in vectors("results")} >= {1, 2, 3, 7, 8, 32}


def test_check_finds_a_file_that_was_changed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names():
        content = json.loads((FOLDER / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(generate.text_of(content) + "\n")
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    assert generate.main(["--check"]) == 0
    (tmp_path / "noise.json").write_text("{}\n")
    (tmp_path / "left_over.json").write_text("{}\n")
    assert generate.differences() == ["left_over.json", "noise.json"]
    assert generate.main(["--check"]) == 1
