"""The Wireshark dissector: the committed file is current, is Lua, and shows what the vectors say."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from tests.vectors.load import vectors

from inagg_wire.dissect import lua
from inagg_wire.errors import Reason
from inagg_wire.layout import FIELDS, HEADER_BYTES, Kind

LUAC = next(filter(None, map(shutil.which, ("luac5.4", "luac5.3", "luac5.2", "luac"))), None)
TSHARK = shutil.which("tshark")
PORT = 7777  # any port: the dissector recognizes magic and version


def test_the_committed_file_is_what_the_generator_writes() -> None:
    assert lua.PATH.read_text() == lua.text(), "run: python -m inagg_wire.dissect.lua"
    assert lua.main(["--check"]) == 0


def test_check_finds_a_stale_file_and_what_is_written_by_hand_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "inagg.lua").write_text(lua.PATH.read_text().replace('"bad_kind"', '"good_kind"'))
    wanted = lua.PATH.read_text()
    monkeypatch.setattr(lua, "PATH", path)
    assert lua.main(["--check"]) == 1
    assert lua.main([]) == 0
    assert lua.main(["--check"]) == 0
    assert path.read_text() == wanted


def test_all_fields_and_reasons_are_in_it() -> None:
    text = lua.generated()
    for field in FIELDS:
        assert f'ProtoField.uint{8 * field.size}("inagg.{field.name}"' in text
        assert f"{field.name} = {{ {field.offset}, {field.size} }}" in text
    for reason in Reason:
        assert f'[{int(reason)}] = "{reason.label}"' in text


@pytest.mark.skipif(LUAC is None, reason="no luac on PATH; run: apt-get install lua5.4")
def test_it_is_valid_lua() -> None:
    assert LUAC is not None
    subprocess.run([LUAC, "-p", str(lua.PATH)], check=True, timeout=60)


def write_pcap(path: Path, payloads: list[bytes]) -> None:
    """UDP datagrams over IPv4 in a capture file of link type 101 (raw IP), see draft-ietf-opsawg-pcap."""
    records = []
    for i, payload in enumerate(payloads):
        udp = struct.pack(">HHHH", 4000, PORT, 8 + len(payload), 0)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0, 64, 17, 0, bytes(4), bytes(4))
        packet = ip + udp + payload
        records.append(struct.pack("<IIII", i, 0, len(packet), len(packet)) + packet)
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101) + b"".join(records))


def dissected(tmp_path: Path, payloads: list[bytes], *columns: str) -> list[list[str]]:
    """What tshark shows in those fields, one row per datagram."""
    assert TSHARK is not None
    capture = tmp_path / "vectors.pcap"
    write_pcap(capture, payloads)
    chosen = [argument for column in columns for argument in ("-e", column)]
    # separated by a tab; a configuration of its own, so that nothing of the user's takes part
    command = [TSHARK, "-n", "-r", str(capture), "-X", f"lua_script:{lua.PATH}", "-T", "fields", *chosen]
    home = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=home)
    # with -T fields, errors of the script go to standard error, and its datagrams stay undissected
    assert "Lua" not in done.stderr, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


needs_tshark = pytest.mark.skipif(TSHARK is None, reason="no tshark on PATH; run: apt-get install tshark")


@needs_tshark
def test_tshark_shows_the_fields_of_valid_datagrams(tmp_path: Path) -> None:
    names = [f.name for f in FIELDS if f.name not in ("magic", "version")]
    valid = vectors("headers", "valid")
    columns = [f"inagg.{name}" for name in names] + ["inagg.reason", "inagg.invalid", "_ws.malformed"]
    rows = dissected(tmp_path, [bytes.fromhex(v["datagram"]) for v in valid], *columns)
    owner, reason = names.index("owner"), len(names)
    for row in rows:  # which share a place
        assert (row[owner] == "") is (row[names.index("kind")] == str(int(Kind.NOTICE)))
        row[owner] += row.pop(reason)
    assert [[int(cell, 0) for cell in row[: len(names)]] for row in rows] == [
        [v["fields"][name] for name in names] for v in valid
    ]
    assert {tuple(row[len(names) :]) for row in rows} == {("", "")}


@needs_tshark
def test_tshark_names_what_is_wrong(tmp_path: Path) -> None:
    invalid = vectors("headers", "invalid")
    rows = dissected(tmp_path, [bytes.fromhex(v["datagram"]) for v in invalid], "frame.number", "inagg.invalid")
    # what is no inagg datagram at all is left to other dissectors
    foreign = ("too_short", "bad_magic", "bad_version")
    assert [row[1] for row in rows] == ["" if v["name"] in foreign else v["name"] for v in invalid]


@needs_tshark
def test_tshark_shows_the_lanes(tmp_path: Path) -> None:
    results = vectors("results")
    datagrams = [bytes.fromhex(v["result"]) for v in results]
    rows = dissected(tmp_path, datagrams, "inagg.payload", "inagg.summary", "inagg.values")
    assert [row[0] for row in rows] == [d[HEADER_BYTES:].hex() for d in datagrams]
    for vector, (_, summary, values) in zip(results, rows, strict=True):
        zeros = sum(code == 0 for code in vector["codes"])
        assert summary.startswith(f"{len(vector['codes'])} lanes, {zeros} zero, "), vector["what"]
        if vector["format"] in ("tern", "dith8-exact", "fix32"):
            assert values.removesuffix(" ...").split() == [str(v) for v in vector["sums"][:16]], vector["what"]


@needs_tshark
def test_tshark_shows_signs_and_levels(tmp_path: Path) -> None:
    [[values]] = dissected(tmp_path, [bytes.fromhex(vectors("contributions")[0]["datagram"])], "inagg.values")
    assert values == "+L28 -L28 0 +L18 0 +L29 -L30 +L30"
