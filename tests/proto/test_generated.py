"""The generated code is what the .proto says, and loads with the runtimes that we promise."""

from __future__ import annotations

import itertools
import re
import sys
import tomllib
from pathlib import Path

import pytest

import inagg_proto
from inagg_proto import generate
from inagg_proto.v1 import control_pb2 as pb

ROOT = Path(__file__).parents[2]
PROTO = (generate.SOURCE_ROOT / generate.PROTO).read_text()


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_the_committed_code_is_what_the_generator_makes() -> None:
    assert generate.main(["--check"]) == 0


def test_code_that_the_proto_does_not_say_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate.generate(tmp_path)
    assert generate.differing(tmp_path) == []
    stubs = tmp_path / "inagg_proto/v1/control_pb2_grpc.py"
    stubs.write_text(stubs.read_text().replace("Heartbeat", "Heartbeet"))
    (tmp_path / "inagg_proto/v1/control_pb2.py").write_text("")
    assert generate.differing(tmp_path) == ["inagg_proto/v1/control_pb2.py", "inagg_proto/v1/control_pb2_grpc.py"]


def test_a_generator_that_fails_says_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "PROTO", "inagg_proto/v1/missing.proto")
    with pytest.raises(generate.GenerateError, match=r"missing\.proto"):
        generate.generate(tmp_path)


def test_the_floors_are_those_of_the_committed_code() -> None:
    v1 = generate.SOURCE_ROOT / "inagg_proto/v1"
    protobuf = re.search(r"^# Protobuf Python Version: (.*)$", (v1 / "control_pb2.py").read_text(), re.M)
    grpcio = re.search(r"^GRPC_GENERATED_VERSION = '(.*)'$", (v1 / "control_pb2_grpc.py").read_text(), re.M)
    assert protobuf is not None
    assert grpcio is not None
    assert version(protobuf[1]) == inagg_proto.PROTOBUF_FLOOR
    assert version(grpcio[1]) == inagg_proto.GRPCIO_FLOOR
    assert version(generate.TOOLS["grpcio-tools"]) == inagg_proto.GRPCIO_FLOOR


def test_the_package_demands_no_older_runtimes_than_the_code_loads_with() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    matches = [re.match(r"([\w-]+)>=([\d.]+)", dependency) for dependency in dependencies]
    floors = {match[1]: match[2] for match in matches if match is not None}
    for name in ("grpcio", "grpcio-health-checking", "grpcio-reflection"):
        assert version(floors[name]) >= inagg_proto.GRPCIO_FLOOR
    assert version(floors["protobuf"]) >= inagg_proto.PROTOBUF_FLOOR


def test_every_field_value_and_call_has_a_comment() -> None:
    lines = PROTO.splitlines()
    declaration = re.compile(r"^\s*(rpc |optional |repeated |map<|[\w.]+ \w+ = \d+;|[A-Z_]+ = \d+;)")
    bare = [
        line.strip()
        for before, line in itertools.pairwise(lines)
        if declaration.match(line) and not before.strip().startswith("//") and "UNSPECIFIED" not in line
    ]
    assert bare == []


def test_durations_and_instants_end_with_their_unit() -> None:
    doubles = re.findall(r"double (\w+) =", PROTO)
    assert doubles
    assert all(name.endswith("_s") for name in doubles)


def test_every_enum_begins_with_unspecified() -> None:
    for name, enum in pb.DESCRIPTOR.enum_types_by_name.items():
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"


def test_the_service_has_the_name_that_both_sides_use() -> None:
    assert pb.DESCRIPTOR.services_by_name["Control"].full_name == inagg_proto.SERVICE


def test_the_pinned_generator_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "TOOLS", generate.installed())
    assert generate.pinned_python(tmp_path / "unused") == Path(sys.executable)
    assert not (tmp_path / "unused").exists()
