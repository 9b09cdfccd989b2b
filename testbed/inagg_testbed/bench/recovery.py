"""How long training stands still when a process is killed: a rank, a replica, the switch.

Real processes, killed with SIGKILL. What counts is the time from that to the first step after it that all ranks have
done.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from ..progress import Doing
from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from ..topology.launch import launcher
from .recovery_command import SWITCH_RESTART, TORCHFT_CRASH, TORCHFT_JOIN, TORCHRUN_RESIZE, TORCHRUN_RESTART

LIMIT_S = 120.0
STEPS_BEFORE = 20
LOOK_EVERY_S = 0.01
LOG_CHARS = 8000
RESTARTS = 9
"""How often torchrun may start the ranks again: Gloo alone sometimes meets nobody, and needs several."""
END_S = 10.0
RANKS = "inagg_testbed.bench.recovery_ranks"
LAST_CALL_S = 1
"""How long torchrun waits for more nodes when it has the least; its own default is 30."""

Line = dict[str, Any]


class NoStepError(RuntimeError):
    """Training did not go on. ``log``: the end of what its processes printed."""

    def __init__(self, why: str, log: str) -> None:
        super().__init__(why)
        self.log = log


class Training:
    """Processes that note their steps in a file. They are killed at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jsonl"
        self.path.touch()
        self._log = folder / f"{name}.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """A Python process with these arguments. It is killed when we are, and what it starts then ends by itself."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                launcher(None, [sys.executable, *arguments]), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def lines(self) -> list[Line]:
        """Lines that have been noted."""
        return [json.loads(line) for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def until(self, enough: Callable[[list[Line]], bool], what: str) -> list[Line]:
        """The lines, when they are ``enough``. Raises `NoStepError` if they do not become it."""
        give_up_s = time.monotonic() + LIMIT_S
        while not enough(lines := self.lines()):
            ended = all(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > give_up_s:
                why = "all processes ended" if ended else f"within {LIMIT_S:g} s"
                raise NoStepError(f"no {what}: {why}", self._log.read_text()[-LOG_CHARS:])
            time.sleep(LOOK_EVERY_S)
        return lines

    def stop(self) -> None:
        """Kill what is left, with what it started."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._processes:
            process.wait(END_S)


@contextmanager
def _training(name: str) -> Iterator[Training]:
    with TemporaryFolder("recovery") as folder:
        training = Training(Path(folder), name)
        try:
            yield training
        finally:
            training.stop()


def _done_at(lines: list[Line], ranks: int, after_s: float, **facts: Any) -> float | None:
    """When the first step was done that so many ranks have done after ``after_s``, of lines with ``facts``; or None."""
    steps: dict[tuple[int, int], dict[str, float]] = {}
    for line in lines:
        if line["step"] and line["at_s"] > after_s and all(line[name] == value for name, value in facts.items()):
            done = steps.setdefault((line.get("attempt", 0), line["step"]), {})
            done[str(line["rank"])] = line["at_s"]
            if len(done) == ranks:
                return max(done.values())
    return None


def _settled(ranks: int) -> Callable[[list[Line]], bool]:
    return lambda lines: sum(line["step"] >= STEPS_BEFORE and line["workers"] == ranks for line in lines) >= ranks


def _after(training: Training, ranks: int, killed_s: float, what: str, **facts: Any) -> float:
    lines = training.until(lambda lines: _done_at(lines, ranks, killed_s, **facts) is not None, what)
    done_s = _done_at(lines, ranks, killed_s, **facts)
    assert done_s is not None
    return done_s - killed_s


def switch_restart(system: str) -> dict[str, float]:
    """The switch is killed and started again at once; the ranks stay."""
    with ExitStack() as stack:
        training = stack.enter_context(_training("switch"))
        switch = stack.enter_context(SwitchProcess())
        for rank in range(2):
            training.start(
                ["-m", RANKS, "numpy", system, str(training.path)],
                INAGG_SWITCH=switch.control, RANK=str(rank), WORLD_SIZE="2",
            )  # fmt: skip
        training.until(_settled(2), "first steps")
        control, data = switch.control, switch.data
        killed_s = time.monotonic()
        switch.kill()
        stack.enter_context(SwitchProcess(control=control, data=data))
        serves_s = time.monotonic() - killed_s
        # A step that was done before may be noted later.
        return {"recovery_s": _after(training, 2, killed_s + serves_s / 2, "step after the restart") + serves_s / 2,
                "of_which_start_s": serves_s}  # fmt: skip


def torchrun_restart(system: str) -> dict[str, float]:
    """A rank is killed; torchrun ends the other and starts both again."""
    with ExitStack() as stack:
        training = stack.enter_context(_training("torchrun"))
        switch = stack.enter_context(SwitchProcess())
        training.start(
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             "--max-restarts", str(RESTARTS), "-m", RANKS, "torchrun", system, str(training.path)],
            INAGG_SWITCH=switch.control,
        )  # fmt: skip
        lines = training.until(_settled(2), "first steps")
        killed_s = time.monotonic()
        os.kill(next(line["pid"] for line in lines if line["rank"] == 1), signal.SIGKILL)
        taken_s = _after(training, 2, killed_s, "step after the restart")
        last = max(line["attempt"] for line in training.lines())
        begun_s = max(line["begun_s"] for line in training.lines() if line["attempt"] == last)
        return {"recovery_s": taken_s, "of_which_start_s": begun_s - killed_s, "restarts": last}


def torchrun_resize(system: str) -> dict[str, float]:
    """Kill one of three nodes of a job of one to four, agent and rank; the others go on as two."""
    with ExitStack() as stack:
        training = stack.enter_context(_training("resize"))
        switch = stack.enter_context(SwitchProcess())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{probe.getsockname()[1]}"

        def agent(node: int) -> subprocess.Popen[bytes]:
            settings = f"is_host={int(node == 0)},last_call_timeout={LAST_CALL_S}"
            return training.start(
                ["-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", endpoint, "--rdzv-id", "resize", "--rdzv-conf", settings,
                 "--local-addr", "127.0.0.1", "--max-restarts", str(RESTARTS),
                 "-m", RANKS, "torchrun", system, str(training.path)],
                INAGG_SWITCH=switch.control,
            )  # fmt: skip

        agents = [agent(node) for node in range(3)]
        training.until(_settled(3), "first steps of three")
        killed_s = time.monotonic()
        lost = agents[2]
        for pid in _children(lost.pid):
            os.kill(pid, signal.SIGKILL)
        lost.kill()
        taken_s = _after(training, 2, killed_s, "step of two", workers=2)
        begun_s = max(line["begun_s"] for line in training.lines() if line["workers"] == 2)
        return {"recovery_s": taken_s, "of_which_start_s": begun_s - killed_s}


def _children(pid: int) -> list[int]:
    """Ids of the processes that ``pid`` has started itself (proc(5))."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@contextmanager
def _replicas(system: str) -> Iterator[tuple[Training, Callable[[int], subprocess.Popen[bytes]], list[int]]]:
    from torchft.coordination import LighthouseServer

    with ExitStack() as stack:
        training = stack.enter_context(_training("torchft"))
        switch = stack.enter_context(SwitchProcess())
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000)
        stack.callback(lighthouse.shutdown)
        address = lighthouse.address().rpartition(":")[2]

        def start(replica: int) -> subprocess.Popen[bytes]:
            return training.start(
                ["-m", RANKS, "torchft", system, str(training.path)], INAGG_SWITCH=switch.control,
                REPLICA=f"replica{replica}", TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{address}",
            )  # fmt: skip

        processes = [start(replica) for replica in range(3)]
        training.until(_settled(3), "steps of three replicas")
        yield training, start, [process.pid for process in processes]


def torchft_crash(system: str) -> dict[str, float]:
    """One of three replicas is killed; the others go on."""
    with _replicas(system) as (training, _, pids):
        killed_s = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)
        return {"recovery_s": _after(training, 2, killed_s, "step of two replicas", workers=2)}


def torchft_late_join(system: str) -> dict[str, float]:
    """And one comes back: from its start to the first step of all three."""
    with _replicas(system) as (training, start, pids):
        killed_s = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)
        _after(training, 2, killed_s, "step of two replicas", workers=2)
        started_s = time.monotonic()
        pid = start(2).pid
        taken_s = _after(training, 3, started_s, "step of three replicas", workers=3)
        ready_s = next(line["at_s"] for line in training.lines() if line["pid"] == pid)
        return {"recovery_s": taken_s, "of_which_start_s": ready_s - started_s}


MEASURES: dict[str, Callable[[str], dict[str, float]]] = {
    SWITCH_RESTART: switch_restart,
    TORCHRUN_RESTART: torchrun_restart,
    TORCHRUN_RESIZE: torchrun_resize,
    TORCHFT_CRASH: torchft_crash,
    TORCHFT_JOIN: torchft_late_join,
}


def why_not(case: str, system: str) -> str | None:
    """Why a case cannot be measured here; None if it can."""
    return "there is no switch" if case == SWITCH_RESTART and system == "gloo" else None


def bench_recovery(
    cases: Sequence[str], systems: Sequence[str], runs: int, progress: Doing
) -> Iterator[dict[str, Any]]:
    """Lines of results, with medians of ``runs`` runs; systems take turns. Where something cannot be measured,
    ``skipped`` says why; runs in which training did not go on are ``failed``, and ``logs`` has what was printed there.
    """
    for case in cases:
        found: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
        lost: dict[str, list[NoStepError]] = {system: [] for system in systems}
        reasons = {system: why_not(case, system) for system in systems}
        for number in range(runs):
            for system in (system for system in systems if reasons[system] is None):
                progress(f"{case}, {system}: run {number + 1} of {runs}")
                try:
                    found[system].append(MEASURES[case](system))
                except NoStepError as error:
                    lost[system].append(error)
        for system in systems:
            line: dict[str, Any] = {"bench": "recovery", "case": case, "system": system}
            if reasons[system] is not None:
                yield line | {"skipped": reasons[system]}
                continue
            failed = {"failed": [str(error) for error in lost[system]], "logs": [error.log for error in lost[system]]}
            medians = {name: median(run[name] for run in found[system]) for run in found[system][:1] for name in run}
            yield line | {"runs": runs} | medians | (failed if lost[system] else {})
