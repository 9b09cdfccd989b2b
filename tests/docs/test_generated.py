"""What is generated says what its sources say: the reference pages, and the picture of the first page."""

from __future__ import annotations

import re

import pytest

from inagg_docs import commands, control, picture
from inagg_docs.tree import ROOT
from inagg_proto.v1 import control_pb2 as pb


def test_every_command_has_its_help() -> None:
    page = commands.page()
    for name in ("inagg switch", "inagg testbed up", "inagg bench allreduce"):
        assert re.search(rf"^##+ {name}$", page, re.M)
    assert "--datagram-bytes" in page
    assert max(map(len, re.findall(r"~~~text\n(.*?)~~~", page, re.S)[0].splitlines())) <= commands.COLUMNS


def test_every_call_message_and_value_of_the_service_has_its_place() -> None:
    page = control.page()
    service = pb.DESCRIPTOR.services_by_name["Control"]
    names = [method.name for method in service.methods]
    names += [*pb.DESCRIPTOR.message_types_by_name, *pb.DESCRIPTOR.enum_types_by_name]
    for name in names:
        assert f"\n### {name}\n" in page
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            row = re.search(rf"^\| `{field.name}` \| {field.number} \| .+ \| \S.* \|$", page, re.M)
            assert row is not None, f"{message.name}.{field.name}"


def test_comments_of_the_service_are_its_text() -> None:
    page = control.page()
    assert "A worker process is a *member*" in page
    assert "| `name` | 1 | string | Name, unique among the jobs of the switch: 1 to 64 letters" in page
    assert "| `lanes` | 4 | uint32, optional | Lanes (elements) of a block" in page
    assert "[Event](#event)" in page


def test_a_definition_with_a_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PROTO", "inagg_proto/v1/missing.proto")
    with pytest.raises(control.ProtocError):
        control.parsed()


def test_the_picture_is_of_the_figures_that_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers, not its bytes: these depend on matplotlib's release."""
    for name in picture.COLOURS:
        text = (ROOT / f"docs/pictures/results-{name}.svg").read_text()
        for panel in picture.panels():
            assert panel.title in text
            for bar, value in panel.bars.items():
                assert bar in text
                assert f"{value:g} {panel.unit}" in text, "run: python docs/inagg_docs/picture.py"


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,.]*\d", text))


def test_the_table_of_the_first_page_is_of_the_figures_that_were_measured() -> None:
    measured = numbers((ROOT / "docs/measured.md").read_text())
    table = (ROOT / "README.md").read_text().split("## What it brings")[1].split("\n\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for row in rows:
        assert numbers(" ".join(row[1:3])) <= measured, row


def test_the_alternative_text_says_what_the_picture_shows() -> None:
    (said,) = re.findall(r'<img alt="([^"]+)"', (ROOT / "README.md").read_text())
    allreduce, training = picture.panels()
    for bars in (allreduce.bars, training.bars):
        assert f"{bars['Gloo, float32']:g}" in said
        assert f"{bars['inagg, nat8']:.0f}" in said or f"{bars['inagg, nat8']:g}" in said
