"""What is generated says what its sources say: the reference pages, and the picture of the first page."""

from __future__ import annotations

import dataclasses
import re
import socket
import urllib.request
from pathlib import Path

import pytest

from inagg_docs import commands, control, metrics, picture
from inagg_docs.tree import ROOT
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control import events as ev
from inagg_switch.service.metric_names import METRICS
from inagg_switch.service.security import read_secrets
from inagg_testbed.switch_process import SwitchProcess
from inagg_wire.formats import FORMATS


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


def test_a_job_spec_names_every_format() -> None:
    (row,) = re.findall(r"^\| `format` \| 3 \| string \| (Format of the numbers: .*) \|$", control.page(), re.M)
    assert set(re.findall(r"[\w-]*\d[\w-]*|tern", row)) == set(FORMATS)


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]


def test_every_metric_has_its_row_and_every_label_its_meaning() -> None:
    named, labels = metrics.page().split("## Labels")
    found = {row[0].strip("`"): row[1:] for row in rows(named)}
    for name, (kind, text, used) in METRICS.items():
        shown = ", ".join(f"`{label}`" for label in used)
        assert found[metrics.name_in_queries(name, kind)] == [kind, shown, text]
    assert {label for row in found.values() for label in re.findall(r"`(\w+)`", row[1])} == {
        row[0].strip("`") for row in rows(labels)
    }


def test_the_page_of_metrics_has_all_that_a_switch_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        url = f"http://127.0.0.1:{opened.getsockname()[1]}/metrics"
        with SwitchProcess("--metrics", f"fd:{opened.fileno()}"), urllib.request.urlopen(url, timeout=30) as reply:
            served = reply.read().decode()
    families = set(re.findall(r"^# TYPE (inagg_\w+) (?:counter|gauge|histogram)$", served, re.M))
    page = metrics.page()
    assert families >= {"inagg_build_info", "inagg_switch_healthy", "inagg_shard_received_datagrams_total"}
    for family in families - {"inagg_control_call_seconds_created"}:
        assert f"`{family}" in page, family


def test_the_log_of_jobs_is_described_event_by_event() -> None:
    section = (ROOT / "docs/operators.md").read_text().split("### Logs")[1].split("\n## ")[0]
    found = {row[0].strip("`"): row[1:] for row in rows(section)}
    events = ev.Event.__args__
    assert set(found) == {re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower() for event in events}
    for event in events:
        level, text = found[re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()]
        assert level == ("warning" if event in (ev.MemberFailed, ev.Stalled) else "info")
        assert set(re.findall(r"`(\w+)`", text)) == {field.name for field in dataclasses.fields(event)}


def test_the_log_of_the_switch_has_the_events_that_are_named_and_no_others() -> None:
    text = (ROOT / "docs/operators.md").read_text()
    section = re.split(r"What\s+ranks\s+log", text.split("Of the switch itself:")[1])[0]
    named = set(re.findall(r"`([a-z]+_[a-z_]+|draining|attached|reloaded)`", section))
    sources = "".join(path.read_text() for path in (ROOT / "switch/inagg_switch").rglob("*.py"))
    for event in named:
        assert f'"{event}"' in sources, event
    logged = set(re.findall(r'\blog\.(?:info|warning|error|exception)\(\s*"(\w+)"', sources))
    assert "not_reloaded" in logged
    assert logged <= named


def test_the_file_of_secrets_is_one_that_a_switch_takes(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```text\n(# A name.*?)^```", (ROOT / "docs/operators.md").read_text(), re.M | re.S)
    (tmp_path / "secrets").write_text(text)
    assert set(read_secrets(tmp_path / "secrets")) == {"operator", "alice", "bob"}


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,.]*\d", text))


def test_the_table_of_the_first_page_is_of_the_figures_that_were_measured() -> None:
    measured = numbers((ROOT / "docs/measured.md").read_text())
    table = (ROOT / "README.md").read_text().split("## What it brings")[1].split("\n\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for row in rows:
        assert numbers(" ".join(row[1:3])) <= measured, row
        assert re.match(r"2\d(?:th|rd|nd|st)", row[4]), "the day"


def test_the_alternative_text_says_what_the_picture_shows() -> None:
    (said,) = re.findall(r'<img alt="([^"]+)"', (ROOT / "README.md").read_text())
    allreduce, training = picture.panels()
    for bars in (allreduce.bars, training.bars):
        assert f"{bars['Gloo, float32']:g}" in said
        assert f"{bars['inagg, nat8']:.0f}" in said or f"{bars['inagg, nat8']:g}" in said
