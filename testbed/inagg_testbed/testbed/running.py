"""Run a script once or more for each worker, as torchrun would, and pass on what the ranks say."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from inagg_testbed.topology import Topology, TopologyError, switch_for
from inagg_testbed.topology.processes import is_ending

MASTER_PORT = 29500  # torchrun's
LAST_WORDS_S = 1.0
"""How long to listen after a rank has ended, to what others still have its output open."""
TERM_LIMIT_S = 5.0
CHUNK_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 16
"""A longer line is passed on in pieces."""

Say = Callable[[int, str, str], None]
"""Called with rank, "out" or "err", and a line."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a rank ended."""

    rank: int
    exit_code: int
    """Exit status as a shell has it: 128 and the signal's number if one ended it."""
    seconds: float
    asked: bool
    """It was told to end, since another had failed."""


def rank_environment(
    topology: Topology, rank: int, port: int, more: Mapping[str, str], leaves: Sequence[str], local_size: int | None
) -> dict[str, str]:
    """Return a rank's environment: what torchrun sets there, and how it reaches the switch (``more``), or
    those of the racks (``leaves``). ``local_size``: each worker is a host of so many ranks; None: all share one."""
    hosts, per_host = (1, len(topology.workers)) if local_size is None else (len(topology.workers), local_size)
    host, local_rank = divmod(rank, per_host)
    worker = rank if local_size is None else host
    ranks = str(hosts * per_host)
    environment = {
        "MASTER_ADDR": topology.workers[0].management,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(host),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": str(per_host),
        "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_WORLD_SIZE": ranks,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": topology.name,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }
    inside = {} if local_size is None else {"INAGG_LOCAL_SIZE": str(local_size)}
    where = {} if not leaves else {"INAGG_SWITCH": switch_for(topology, worker, "", leaves)}
    return {**os.environ, **environment, **inside, **more, **where, **topology.workers[worker].environment()}


def free_port(topology: Topology) -> int:
    """A port for the ranks' rendezvous: in a fresh namespace torchrun's, else one that is free now."""
    if topology.workers[0].namespace is not None:
        return MASTER_PORT
    with socket.socket() as probe:
        probe.bind((topology.workers[0].host, 0))
        port: int = probe.getsockname()[1]
        return port


def run_script(
    topology: Topology,
    argv: Sequence[str],
    environment: Mapping[str, str],
    say: Say,
    leaves: Sequence[str] = (),
    local_size: int | None = None,
) -> list[Ended]:
    """Run ``argv`` on every worker and wait; how each rank ended, by rank. ``leaves``: the switches of the racks;
    ``local_size``: ranks on each worker, see `rank_environment`.

    When one fails the others are told to end, as torchrun does. Raises `TopologyError` if the program cannot be started
    at all. After an exception all ranks have ended: Ctrl-C, or a signal, lets them save what they have first, until it
    comes again; else they have been killed.
    """
    port = free_port(topology)
    with ExitStack() as stack:
        ranks = []
        for rank, node in enumerate(node for node in topology.workers for _ in range(local_size or 1)):
            try:
                process = subprocess.Popen(
                    node.command(argv),
                    env=rank_environment(topology, rank, port, environment, leaves, local_size),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C comes to us alone, and we tell the ranks
                )
            except OSError as error:
                raise TopologyError(f"cannot start rank {rank}: {error}") from error
            stack.enter_context(process)
            stack.callback(_kill, process)  # called first: leaving a process waits for it
            ranks.append(process)
        with selectors.DefaultSelector() as selector:
            lines = _Lines(selector, ranks, say)
            try:
                return _watch(ranks, lines)
            except KeyboardInterrupt:
                _bid_end(ranks, lines)
                raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a rank's process group."""
    if process.poll() is None:
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        process.poll()


def _bid_end(ranks: Sequence[subprocess.Popen[bytes]], lines: _Lines) -> None:
    """Tell the ranks to end, and pass on what they say to it, for as long as when one has failed."""
    for process in ranks:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
    deadline_s = time.monotonic() + TERM_LIMIT_S
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline_s:
        lines.pass_on(0.05)
    lines.pass_on(0.0)
    lines.finish()


def _watch(ranks: Sequence[subprocess.Popen[bytes]], lines: _Lines) -> list[Ended]:
    """Pass lines on until all ranks have ended, and end them all when one fails."""
    start_s = time.monotonic()
    ended: dict[int, Ended] = {}
    told: set[int] = set()
    failing = False
    kill_at_s = float("inf")
    while len(ended) < len(ranks):
        lines.pass_on(0.05)
        for rank, process in enumerate(ranks):
            if rank not in ended and (code := process.poll()) is not None:
                exit_code = code if code >= 0 else 128 - code
                ended[rank] = Ended(rank, exit_code, time.monotonic() - start_s, rank in told)
        if not failing and any(end.exit_code for end in ended.values()):
            failing, kill_at_s = True, time.monotonic() + TERM_LIMIT_S
            for rank in ranks_left(ranks, ended):
                if not is_ending(ranks[rank].pid):  # else it does so by itself, since it was looked at
                    told.add(rank)
                _signal(ranks[rank], signal.SIGTERM)  # in any case, for the sake of its children
        if time.monotonic() > kill_at_s:
            for rank in ranks_left(ranks, ended):
                _signal(ranks[rank], signal.SIGKILL)
    deadline_s = time.monotonic() + LAST_WORDS_S
    while lines.open and time.monotonic() < deadline_s:
        lines.pass_on(0.05)
    lines.finish()
    return [ended[rank] for rank in range(len(ranks))]


def ranks_left(ranks: Sequence[object], ended: Mapping[int, Ended]) -> list[int]:
    """Return the ranks that have not ended."""
    return [rank for rank in range(len(ranks)) if rank not in ended]


def cut(text: bytes) -> tuple[bytes, bytes]:
    """All whole characters of a text in UTF-8 that goes on, and what there is of the next one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text)
    begun, _ = decoder.getstate()
    return text[: len(text) - len(begun)], begun


class _Lines:
    """Cuts what comes through the ranks' pipes into lines."""

    def __init__(self, selector: selectors.BaseSelector, ranks: Sequence[subprocess.Popen[bytes]], say: Say) -> None:
        self._selector, self._say = selector, say
        self._rests: dict[tuple[int, str], bytes] = {}
        for rank, process in enumerate(ranks):
            for kind, pipe in (("out", process.stdout), ("err", process.stderr)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, (rank, kind))
                self._rests[rank, kind] = b""

    @property
    def open(self) -> bool:
        """Whether something may still come."""
        return bool(self._selector.get_map())

    def pass_on(self, timeout_s: float) -> None:
        """Pass on what has come, or comes within the time."""
        if not self.open:
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment] # what was registered
            chunk = os.read(pipe.fileno(), CHUNK_BYTES)
            if not chunk:
                self._selector.unregister(pipe)
            self._take(key.data, chunk)

    def _take(self, source: tuple[int, str], chunk: bytes) -> None:
        *lines, rest = (self._rests[source] + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            piece, rest = cut(rest)
            lines.append(piece)
        self._rests[source] = rest
        for line in lines:
            self._say(*source, line.decode(errors="replace").rstrip("\r"))

    def finish(self) -> None:
        """Pass on lines without an end."""
        for source, rest in self._rests.items():
            if rest:
                self._say(*source, rest.decode(errors="replace"))
        self._rests.clear()
