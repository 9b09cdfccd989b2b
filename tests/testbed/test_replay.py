"""Recordings: what is recorded replays bit for bit, and what was changed is found."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from tests.link.memory import MemoryNetwork
from tests.switch.aggregation.world import block_of, make_binding, make_contribution, simple_codes

from inagg_link.addresses import Address
from inagg_link.base import Batch
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_link.pcap import CaptureLink
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_switch.software.data_plane import DataPlane
from inagg_switch.software.recording import (
    Recorder,
    binding_fields,
    binding_from,
    decode_note,
    encode_note,
)
from inagg_testbed.replay.cli import replay
from inagg_testbed.replay.recording import (
    Bind,
    End,
    Received,
    RecordingError,
    Run,
    Sent,
    add_run,
    events,
    why_not_whole,
)
from inagg_wire.formats import FORMATS
from inagg_wire.layout import Op

SWITCH = ("10.0.0.254", 47101)
SLOTS, LANES = 8, 64
FILE_HEADER_BYTES, RECORD_HEADER_BYTES, IP_UDP_BYTES = 24, 16, 28


class World:
    """A data plane that is recorded, and workers who send it datagrams, in one process."""

    def __init__(self, path: Path, binding: Binding, faults: Faults | None = None, max_bytes: int = 1 << 30) -> None:
        network = MemoryNetwork()
        self.workers = [network.link(address) for address in binding.children]
        below = network.link(SWITCH)
        self.link = CaptureLink(
            below if faults is None else FaultLink(below, faults, seed=1), path, max_bytes=max_bytes
        )
        self.recorder = Recorder(self.link, {"slots": SLOTS, "lanes": LANES, "faults": None, "fault_seed": None})
        self.aggregator = Aggregator(SLOTS, LANES)
        self.plane = DataPlane(self.link, self.aggregator)
        self.binding = binding
        self.bind(binding)

    def bind(self, binding: Binding) -> None:
        self.aggregator.bind(binding)
        self.recorder.bind(binding)

    def send(self, rank: int, *datagrams: bytes) -> None:
        data = np.frombuffer(b"".join(datagrams), np.uint8)
        self.workers[rank].send(Batch(data, len(datagrams[0]), SWITCH))

    def send_blocks(self, first: int, count: int) -> None:
        """All ranks contribute to ``count`` blocks, each rank in one batch; the switch takes them in together."""
        for rank in range(len(self.workers)):
            self.send(rank, *(block_of(self.binding, block)[rank] for block in range(first, first + count)))
        while self.plane.step(0.0):
            pass

    def close(self, end: bool = True) -> None:
        if end:
            self.recorder.end(self.plane.counters())
        self.link.close()


def record(path: Path, binding: Binding | None = None, faults: Faults | None = None) -> World:
    """A recording of some blocks with a repetition, a stranger's datagram and a new epoch."""
    binding = binding or make_binding(n=3)
    world = World(path, binding, faults)
    world.send_blocks(0, 2)
    world.send(0, block_of(binding, 1)[0])  # its result again, please
    world.send(1, make_contribution(binding, 2, simple_codes(binding, 1, 2), token=99))  # a notice
    world.send_blocks(2, 2)
    world.binding = dataclasses.replace(binding, token=0xBEEF, seed=5)
    world.bind(world.binding)
    world.send_blocks(0, 3)
    world.close()
    return world


def run(path: Path, *options: str) -> tuple[int, list[dict[str, object]]]:
    done = CliRunner().invoke(replay, [str(path), "--json", *options], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", list(FORMATS))
def test_what_was_recorded_is_computed_again_by_both_cores(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.pcap"
    record(path, make_binding(fmt=name, n=3))
    status, lines = run(path)
    assert status == 0
    assert [line["core"] for line in lines] == ["model", "fast"]
    for line in lines:
        assert line["identical"]
        assert line["whole"]
        assert line["datagrams_in"] == 3 * 7 + 2
        assert line["datagrams_out"] == 3 * 7 + 2  # a result to each of three workers; one again; a notice


def test_what_the_switch_saw_behind_faults_is_recorded_and_not_what_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    record(path, faults=Faults(drop=0.2, duplicate=0.3))
    status, lines = run(path)
    assert status == 0
    assert lines[0]["datagrams_in"] != 3 * 7 + 2


def places(path: Path) -> list[tuple[int, int]]:
    """Where the payload of each record begins and ends."""
    data, found, at = path.read_bytes(), [], FILE_HEADER_BYTES
    while at < len(data):
        (length,) = struct.unpack_from("<8xI", data, at)
        found.append((at + RECORD_HEADER_BYTES + IP_UDP_BYTES, at + RECORD_HEADER_BYTES + length))
        at += RECORD_HEADER_BYTES + length
    return found


@pytest.mark.parametrize("core", ["model", "fast"])
def test_a_changed_byte_of_a_result_is_the_difference_that_is_told(tmp_path: Path, core: str) -> None:
    path = tmp_path / "run.pcap"
    record(path)
    number = next(event.number for event in events(path) if isinstance(event, Sent))
    start, _ = places(path)[number - 1]
    data = bytearray(path.read_bytes())
    data[start + 24 + 5] ^= 1
    path.write_bytes(data)
    status, (line,) = run(path, "--core", core)
    assert status == 1
    difference = line["difference"]
    assert isinstance(difference, dict)
    assert difference["record"] == number
    assert "slot 0, generation 1: byte 29 of" in difference["what"]


def test_a_contribution_that_is_missing_from_a_recording_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    record(path)
    first = next(event.first for event in events(path) if isinstance(event, Received))
    _, end = places(path)[first - 2]
    _, next_end = places(path)[first - 1]
    data = path.read_bytes()
    path.write_bytes(data[:end] + data[next_end:])
    status, (line,) = run(path, "--core", "fast")
    assert status == 1
    assert "the replay does not" in str(line["difference"])


def test_a_result_that_is_missing_from_a_recording_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    record(path)
    last = [event.number for event in events(path) if isinstance(event, Sent)][-1]
    _, end = places(path)[last - 2]
    _, next_end = places(path)[last - 1]
    data = path.read_bytes()
    path.write_bytes(data[:end] + data[next_end:])
    status, (line,) = run(path, "--core", "model")
    assert status == 1
    assert "1 datagrams more" in str(line["difference"])


@pytest.mark.parametrize("cut", [1, 100, 900])
def test_a_recording_that_was_cut_short_is_compared_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.pcap"
    record(path)
    path.write_bytes(path.read_bytes()[:-cut])
    status, lines = run(path)
    assert status == 0
    assert not any(line["whole"] for line in lines)


def test_a_recording_that_became_full_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    world = World(path, make_binding(n=2), max_bytes=600)
    world.send_blocks(0, 4)
    world.close()
    (end,) = [event for event in events(path) if isinstance(event, End)]
    assert not end.whole
    assert "no room" in end.why
    status, lines = run(path)
    assert status == 0
    assert not any(line["whole"] for line in lines)


@pytest.mark.parametrize("name", ["run.pcap", "run.pcap.gz"])
def test_damage_behind_the_end_of_a_recording_is_told(tmp_path: Path, name: str) -> None:
    """Such as where the note of its run is: the end had been noted before."""
    path = tmp_path / name
    record(path)
    assert why_not_whole(path) is None
    with path.open("ab") as file:
        file.write(b"half a note")
    why = why_not_whole(path)
    assert why is not None
    assert "ends within the header" in why or "what is compressed is damaged" in why
    status, lines = run(path)
    assert status == 0
    assert not any(line["whole"] for line in lines)
    assert str(path) in CliRunner().invoke(replay, [str(path), "--core", "fast"], standalone_mode=False).output


def test_a_recording_that_became_full_and_was_damaged_says_both(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    world = World(path, make_binding(n=2), max_bytes=600)
    world.send_blocks(0, 4)
    world.close()
    with path.open("ab") as file:
        file.write(b"half a note")
    why = why_not_whole(path)
    assert why is not None
    assert "no room; " in why
    assert why.endswith("ends within the header of a record")


@pytest.mark.parametrize("name", ["run.pcap", "run.pcap.gz"])
def test_a_recording_whose_disk_was_full_keeps_the_note_of_its_run(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # more is an error, as on a disk that is full
    try:
        world = World(path, make_binding(n=2))
        for block in range(0, 400, 4):
            world.send_blocks(block, 4)
        world.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = add_run(path, command=["train"], summary="a testbed")
    assert said.startswith("recorded in part (the switch was killed, or its disk was full) in ")
    *_, ran, end = events(path)
    assert isinstance(ran, Run)
    assert ran.fields["summary"] == "a testbed"
    assert end == End(False, 0, "the switch was killed, or its disk was full")


def test_a_disk_without_room_for_the_note_of_a_run_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    record(path)
    size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        said = add_run(path, command=["train"], summary="a testbed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.startswith("recorded in part ([Errno 27] File too large")
    assert path.stat().st_size == size
    assert add_run(path).startswith(f"recorded in {path}; ")


def test_jobs_and_their_seeds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    world = record(path)
    bound = [event.binding for event in events(path) if isinstance(event, Bind)]
    assert bound == [make_binding(n=3), world.binding]


def test_a_file_that_is_no_recording_is_told_with_status_2(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    network = MemoryNetwork()
    with CaptureLink(network.link(SWITCH), path), network.link(("10.0.0.1", 1)):
        pass
    with pytest.raises(RecordingError, match="--record"):
        list(events(path))
    done = CliRunner().invoke(replay, [str(path)])
    assert done.exit_code == 2
    assert "no recording" in done.output


def test_a_job_that_the_switch_of_the_recording_cannot_have_had_is_told_with_status_2(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    world = record(path)
    data = path.read_bytes()
    with CaptureLink(MemoryNetwork().link(SWITCH), path) as link:
        recorder = Recorder(link, {"slots": SLOTS, "lanes": LANES})
        recorder.bind(dataclasses.replace(world.binding, lanes=2 * LANES))
    done = CliRunner().invoke(replay, [str(path), "--core", "fast"])
    assert done.exit_code == 2
    assert f"{2 * LANES} lanes: this switch's slots have {LANES}" in done.output
    path.write_bytes(data.replace(b'"slots":8,"lanes":64', b'"slots":7,"lanes":64'))
    done = CliRunner().invoke(replay, [str(path), "--core", "fast"])
    assert done.exit_code == 2
    assert "no switch with 7 slots" in done.output


def test_progress_says_nothing_that_reads_like_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pcap"
    record(path)
    monkeypatch.setattr("inagg_testbed.replay.cli.SHOW_EVERY_S", -1.0)
    done = CliRunner().invoke(replay, [str(path), "--core", "fast"])
    assert done.stderr.startswith("fast core: replaying; ")
    assert "same" not in done.stderr


def test_a_binding_is_the_same_after_it_was_written() -> None:
    addresses: tuple[Address, ...] = (("10.0.0.1", 1), ("::1", 65535))
    binding = make_binding(n=2, children=addresses, fmt="tern")
    assert binding_from(decode_note(encode_note(binding_fields(binding)))) == binding
    assert binding.contribution_bytes(Op.SUM)  # it is complete


def test_an_output_that_cannot_be_written_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inagg replay FILE > /dev/full`."""
    path = tmp_path / "run.pcap"
    record(path)

    def full(_text: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("inagg_testbed.replay.cli.click.echo", full)
    with pytest.raises(OSError, match="No space left"):
        run(path, "--core", "model")


def test_a_file_that_cannot_be_read_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pcap"
    record(path)

    def broken(_path: Path) -> Iterator[object]:
        yield from ()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("inagg_testbed.replay.recording.read_capture", broken)
    with pytest.raises(click.BadParameter, match="Input/output error"):
        run(path)
