"""A program that runs beside us, with its log in a folder of its own: what switches in processes have in common."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from .temporary import TemporaryFolder

BETWEEN_SIGNALS_S = 0.05


class LoggedProcess:
    """A process from `_start` to `stop`; a context manager."""

    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM,)
    """Signals that tell it to end."""
    stop_limit_s: ClassVar[float] = 5.0
    """How long it may take then, until it is killed."""

    process: subprocess.Popen[bytes]

    def __init__(self, name: str) -> None:
        """``name``: of its folder, for people."""
        self._folder = TemporaryFolder(name)
        self.folder = Path(self._folder.name)
        self._log = self.folder / "log"

    def _start(self, argv: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """``environment``: what it needs besides ours; ``pass_fds``: descriptors that it inherits."""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                cwd=self.directory,
                # A session of its own: Ctrl-C in a terminal goes to us, and we stop it when its work is done.
                start_new_session=True,
                pass_fds=pass_fds,
            )

    @property
    def directory(self) -> Path | None:
        """Where it runs; None: where we do."""
        return None

    def printed(self) -> str:
        """Its log."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """End it. No error if it is gone."""
        for number in self.stop_signals:
            if self.process.poll() is None:
                self.process.send_signal(number)
                time.sleep(BETWEEN_SIGNALS_S)
        try:
            self.process.wait(self.stop_limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def kill(self) -> None:
        """SIGKILL, as a crash would be."""
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
