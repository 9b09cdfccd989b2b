"""The log of a switch whose reader stands still: nobody waits for it."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest
import structlog

from inagg_switch import logs
from inagg_switch.cli import log_writer
from inagg_switch.cli.log_writer import LogWriter, log_on_thread

pytestmark = pytest.mark.usefixtures("restored_log")


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """What the log goes to: its end for who reads, and that for who writes."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        yield read_end, stream
        os.close(read_end)
        for thread in threading.enumerate():  # one that waits to write ends now, before its descriptor is another's
            if thread.name == "inagg-log":
                thread.join(20)


def read_until(read_end: int, word: bytes) -> bytes:
    found = b""
    while word not in found:
        found += os.read(read_end, 1 << 16)
    return found


def test_lines_are_those_of_the_log_in_their_order(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read_end, stream = pipe
    logs.configure("json", "info", stream)
    log = structlog.get_logger("inagg.test")
    with log_on_thread():
        for number in range(100):
            log.info("hello", number=number)
    log.info("after")
    lines = read_until(read_end, b"after").splitlines()
    assert [f'"number": {number},'.encode() in line for number, line in enumerate(lines[:100])] == [True] * 100
    assert len(lines) == 101
    assert isinstance(logging.getLogger().handlers[0], logging.StreamHandler)


def test_nobody_waits_for_a_reader_that_stands_still(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "LINES_MAX", 50)
    read_end, stream = pipe
    logs.configure("json", "info", stream)
    log = structlog.get_logger("inagg.test")
    text, done = "x" * 10_000, threading.Event()

    def chatter() -> None:
        with log_on_thread():
            for number in range(200):  # 2 MB; a pipe holds 64 kB
                log.info("hello", number=number, text=text)
            done.set()
            assert b'"number": 0' in read_until(read_end, b"log_lines_lost")

    talking = threading.Thread(target=chatter, daemon=True)
    talking.start()
    assert done.wait(20), "it waited"
    talking.join(20)
    assert not talking.is_alive()


def test_the_end_does_not_wait_either(pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "END_S", 0.2)
    _, stream = pipe
    logs.configure("json", "info", stream)
    log = structlog.get_logger("inagg.test")
    with log_on_thread():
        for _ in range(20):
            log.info("hello", text="x" * 10_000)  # 200 kB; a pipe holds 64
    log.info("after")  # would wait for ever
    assert isinstance(logging.getLogger().handlers[0], logging.NullHandler)


def test_what_was_logged_is_written_after_a_flush(pipe: tuple[int, io.TextIOWrapper]) -> None:
    read_end, stream = pipe
    logs.configure("json", "info", stream)
    with log_on_thread():
        (writer,) = logging.getLogger().handlers
        for number in range(100):
            structlog.get_logger("inagg.test").info("hello", number=number)
        writer.flush()
        assert os.read(read_end, 1 << 16).count(b"hello") == 100


def test_a_log_that_goes_to_no_descriptor_stays_as_it_is() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    with log_on_thread():
        structlog.get_logger("inagg.test").info("hello")
        assert not isinstance(logging.getLogger().handlers[0], LogWriter)
    assert "hello" in stream.getvalue()


class FullDisk:
    """Stands for `os` with a disk that has room for so many bytes, or all of them: None."""

    def __init__(self, room: int | None) -> None:
        self.room, self.written = room, b""

    def write(self, _descriptor: int, data: bytes) -> int:
        part = data[: self.room]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room = None if self.room is None else self.room - len(part)
        self.written += part
        return len(part)


def test_lines_that_do_not_fit_on_a_full_disk_are_told_when_there_is_room_and_break_no_other(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stream = pipe
    logs.configure("json", "info", stream)
    log, disk = structlog.get_logger("inagg.test"), FullDisk(20)
    monkeypatch.setattr(log_writer, "os", disk)
    with log_on_thread():
        (writer,) = logging.getLogger().handlers
        for number in range(5):
            log.info("hello", number=number)
        writer.flush()
        disk.room = None
        log.info("hello", number=5)
        for _ in range(2):  # the second for what the writer says itself
            writer.flush()
    first, *lines = disk.written.splitlines()
    assert len(first) == 20
    after, lost = map(json.loads, lines)
    assert (after["event"], after["number"]) == ("hello", 5)
    assert (lost["event"], lost["lines"]) == ("log_lines_lost", 5)
    assert lost["why"] == "standard error could not be written: No space left on device"


def test_a_line_that_tells_of_lost_ones_and_is_lost_itself_forgets_none(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stream = pipe
    logs.configure("json", "info", stream)
    log, disk = structlog.get_logger("inagg.test"), FullDisk(0)
    monkeypatch.setattr(log_writer, "os", disk)
    with log_on_thread():
        (writer,) = logging.getLogger().handlers
        log.info("lost")
        writer.flush()
        disk.room = 100  # for the next line, and not for the one that tells of the first
        log.info("short")
        for _ in range(2):
            writer.flush()
        assert b"short" in disk.written
        disk.room = None
        log.info("after")
        for _ in range(2):
            writer.flush()
    assert json.loads(disk.written.splitlines()[-1])["lines"] == 2


def test_a_pipe_that_nobody_reads_any_more_is_no_error(pipe: tuple[int, io.TextIOWrapper]) -> None:
    _, stream = pipe
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, stream.fileno())
    os.close(write)
    logs.configure("json", "info", stream)
    with log_on_thread():
        structlog.get_logger("inagg.test").info("hello")
