"""A software switch in a process of its own: what demo, benchmarks and tests run against."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import click

from inagg_switch.addresses import join_address
from inagg_switch.service.http_server import OPENED

from .logged_process import LoggedProcess
from .topology.base import Node
from .topology.launch import launcher

START_LIMIT_S = 120.0
"""How long it may say nothing before it serves: the first start on a machine compiles, and says so."""

COMMAND = (sys.executable, "-m", "inagg")
"""`inagg`, by the Python that runs this, whatever is on the PATH."""


class SwitchStartError(click.ClickException, RuntimeError):
    """A switch did not start; what it said is in the message."""


class SwitchProcess(LoggedProcess):
    """`inagg switch` with the given options, from the constructor to `stop`, jobs or not; a context manager.

    ``control`` and ``data`` are its addresses, host:port (``data`` None: ``options`` say where it is).
    ``node``: where it runs, if not here. It is killed when the thread that made it ends; its shards end when they find
    that it is gone. Raises `SwitchStartError`, with what it printed, if it does not start.
    """

    stop_signals = (signal.SIGINT, signal.SIGINT)  # the second signal ends what the first one waits for
    stop_limit_s = 15.0

    def __init__(
        self, *options: str, control: str = "127.0.0.1:0", data: str | None = "127.0.0.1:0", node: Node | None = None
    ) -> None:
        super().__init__("switch")
        ready = self.folder / "ready.json"
        command = [*COMMAND, "switch", "--listen", control, "--ready-file", str(ready), *options]
        command += [] if data is None else ["--data", data]
        command = launcher(None, command) if node is None else node.command(command)
        opened = [int(word.removeprefix(OPENED)) for word in options if word.startswith(OPENED)]
        self._start(command, {} if node is None else node.environment(), opened)
        try:
            self._await(ready)
        except BaseException:
            self.kill()
            raise
        found = json.loads(ready.read_text())
        self.control: str = found["control"]
        self.data: str = join_address(found["shards"][0]["host"], found["shards"][0]["port"])

    def _await(self, ready: Path) -> None:
        deadline_s, heard = time.monotonic() + START_LIMIT_S, 0
        while not ready.exists():
            if self.process.poll() is not None:
                raise SwitchStartError(f"the switch did not start:\n{self.printed()}")
            if time.monotonic() > deadline_s:
                words = self.printed() or "(nothing)"
                raise SwitchStartError(f"the switch has said nothing new for {START_LIMIT_S:.0f} s. It said:\n{words}")
            if len(words := self.printed()) != heard:
                for line in words[heard:].splitlines():
                    if "compiling" in line:
                        click.echo(line.partition("] ")[2] or line, err=True)  # without time and level
                deadline_s, heard = time.monotonic() + START_LIMIT_S, len(words)
            time.sleep(0.01)
