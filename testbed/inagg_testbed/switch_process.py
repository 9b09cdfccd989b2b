"""A software switch in a process of its own: what demo, benchmarks and tests run against."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from .topology.base import Node
from .topology.launch import launcher

START_LIMIT_S = 120.0  # the first start on a machine compiles the kernels
STOP_LIMIT_S = 15.0

COMMAND = (sys.executable, "-c", "import sys; from inagg_testbed.cli import main; sys.exit(main())")
"""`inagg`, by the Python that runs this, whatever is on the PATH."""


class SwitchProcess:
    """`inagg switch` with the given options, from the constructor to `stop`; a context manager.

    ``control`` and ``data`` are its addresses, host:port (``data`` None: ``options`` say where it is).
    ``node``: where it runs, if not here. It is killed when the thread that made it ends. Raises RuntimeError, with what
    it printed, if it does not start.
    """

    def __init__(
        self, *options: str, control: str = "127.0.0.1:0", data: str | None = "127.0.0.1:0", node: Node | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="inagg-switch-")
        ready, self._log = Path(self._folder.name) / "ready.json", Path(self._folder.name) / "log"
        command = [*COMMAND, "switch", "--listen", control, "--ready-file", str(ready), *options]
        command += [] if data is None else ["--data", data]
        command = launcher(None, command) if node is None else node.command(command)
        environment = os.environ if node is None else {**os.environ, **node.environment()}
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C in a terminal goes to us, and we stop the switch when its work is done.
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            self._await(ready)
        except BaseException:
            self.kill()
            raise
        found = json.loads(ready.read_text())
        self.control: str = found["control"]
        self.data: str = f"{found['shards'][0]['host']}:{found['shards'][0]['port']}"

    def _await(self, ready: Path) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the switch did not start:\n{self._log.read_text()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop it, jobs or not. No error if it is gone."""
        for _ in range(2):  # the second signal ends what the first one waits for
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
                time.sleep(0.05)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def kill(self) -> None:
        """SIGKILL, as a crash would be; its shards end when they find that it is gone."""
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
