"""Log lines that a thread writes, for a process whose event loop must not wait for who reads them: a terminal that
Ctrl-S holds, a pager, a collector of logs that hangs."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog

LINES_MAX: Final = 10_000
"""Lines that may wait to be written; further ones are lost, and counted."""
END_S: Final = 2.0
"""Seconds that the lines that wait get when the process ends, or says that it serves."""

log = structlog.get_logger("inagg.switch")


class _Lines:
    """A descriptor that lines are written to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._cut = False

    def write(self, line: bytes) -> OSError | None:
        """Write a line, and before it the end of one that was cut: else nobody could read either. Returns the error
        that keeps it from being written, or a part of it."""
        rest = b"\n" + line if self._cut else line
        try:
            while rest:
                written = os.write(self._descriptor, rest)
                self._cut = not rest[:written].endswith(b"\n")
                rest = rest[written:]
        except OSError as error:
            return error
        return None


class LogWriter(logging.Handler):
    """Writes lines as another handler formats them, to a descriptor, on a thread of its own, from the constructor to
    `end`. Raises RuntimeError if there is no thread for it."""

    def __init__(self, descriptor: int, formatter: logging.Formatter | None) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | threading.Event | None] = queue.Queue(LINES_MAX)
        self._lost = 0
        """Lines for which there was no room."""
        # Not by way of sys.stderr, whose lock a thread that waits would keep at the end of the process.
        self._thread = threading.Thread(target=self._write_lines, name="inagg-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Called for each line."""
        try:
            self._lines.put_nowait(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except queue.Full:
            self._lost += 1
        except Exception:  # a bug of whoever logs must not end what he does
            self.handleError(record)

    def _write_lines(self) -> None:
        lines = _Lines(self._descriptor)
        unwritten, told, error = 0, 0, None
        why = ""
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
            elif (error := lines.write(line)) is not None:  # nobody reads any more, or the disk is full
                why = error.strerror or str(error)
                unwritten, told = unwritten + told + 1, 0  # this may be the line that has told of those
            else:
                told = 0
            if error is not None or not self._lines.empty():
                continue
            if self._lost:
                lost, self._lost = self._lost, 0
                log.warning("log_lines_lost", lines=lost, why="whoever reads standard error stood still")
            if unwritten:
                told, unwritten = unwritten, 0
                log.warning("log_lines_lost", lines=told, why=f"standard error could not be written: {why}")

    def flush(self) -> None:
        """Wait until what was logged is written, but no longer than `END_S`, or twice that."""
        written = threading.Event()
        with suppress(queue.Full):
            self._lines.put(written, timeout=END_S)
            written.wait(END_S)

    def end(self) -> bool:
        """Write what waits, if that takes no longer than `END_S`, or twice that; whether all was written."""
        try:
            self._lines.put(None, timeout=END_S)
        except queue.Full:
            return False
        self._thread.join(END_S)
        return not self._thread.is_alive()


@contextmanager
def log_on_thread() -> Iterator[None]:
    """Inside, what `logs.configure` has made the log is written by a `LogWriter`, where it goes to a descriptor and
    there is a thread for it."""
    root = logging.getLogger()
    before = root.handlers[:]
    writer: LogWriter | None = None
    with suppress(AttributeError, OSError, ValueError, RuntimeError):  # no file (or a closed one), or no thread
        (handler,) = before
        writer = LogWriter(handler.stream.fileno(), handler.formatter)  # type: ignore[attr-defined]  # if it has one
        root.handlers[:] = [writer]
    try:
        yield
    finally:
        if writer is not None:
            root.handlers[:] = before if writer.end() else [logging.NullHandler()]  # not to wait now for who reads
