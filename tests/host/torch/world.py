"""Ranks in processes of their own that stay, so that many tests share the seconds it takes to start them."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 120.0
RUN_S = 120.0
STOP_S = 20.0
STACKS_S = 2.0


class RankError(AssertionError):
    """What went wrong on which rank."""


class World:
    """``ranks`` processes that are in a process group and call what they are given, all at once.

    If one does not answer in time, or ends, all are killed: they are no longer at the same call, and an answer that
    came late would be taken for that to the next one. Later calls raise `RankError` with what it was.
    """

    def __init__(
        self, ranks: int, folder: Path, environment: Mapping[str, str], backend: str = "inagg", timeout_s: float = 60.0
    ) -> None:
        self.size = ranks
        self._folder = folder
        self._ended = ""
        """Why there are no ranks any more."""
        context = multiprocessing.get_context("forkserver")
        # Ranks are forked from a process that has imported what they need, which takes seconds.
        context.set_forkserver_preload(["inagg_host.torch", "tests.host.torch.preload"])
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            mine, theirs = context.Pipe()
            settings = {"OMP_NUM_THREADS": "1", **environment}
            process = context.Process(
                target=_serve,
                args=(rank, ranks, theirs, folder, settings, backend, timeout_s),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        self._gather(START_S, "start")

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = RUN_S) -> list[Any]:
        """Call a function of a module on all ranks; what it returned, by rank. Raises `RankError` if any raised, has
        not answered within ``timeout_s``, or has ended; or if that was so before."""
        if self._ended:
            raise RankError(f"{function.__name__} was not called, as the ranks were killed before: {self._ended}")
        for pipe in self._pipes:
            with suppress(BrokenPipeError):  # it has ended, which is found out next
                pipe.send((function, arguments))
        return self._gather(timeout_s, function.__name__)

    def _gather(self, timeout_s: float, what: str) -> list[Any]:
        try:
            answers = self._hear(timeout_s, what)
        except BaseException as error:  # a time limit of the test's too
            self._kill(str(error).partition("\n")[0] or type(error).__name__)
            raise
        if errors := [f"rank {rank}: {result}" for rank, (good, result) in enumerate(answers) if not good]:
            raise RankError("\n".join(errors))
        return [result for _, result in answers]

    def _hear(self, timeout_s: float, what: str) -> list[tuple[bool, Any]]:
        """One answer of each. Raises `RankError` if any gives none."""
        give_up_s = time.monotonic() + timeout_s
        answers, silent = list[tuple[bool, Any]](), []
        for rank, pipe in enumerate(self._pipes):
            try:
                if pipe.poll(max(0.0, give_up_s - time.monotonic())):
                    answers.append(pipe.recv())
                else:
                    silent.append(f"rank {rank} has not answered to {what} within {timeout_s:g} s{self._stacks(rank)}")
            except (EOFError, ConnectionResetError):
                self._processes[rank].join(STOP_S)
                silent.append(f"rank {rank} has ended in {what}, with exit code {self._processes[rank].exitcode}")
        if silent:
            raise RankError("\n".join([*silent, *(str(result) for good, result in answers if not good)]))
        return answers

    def _stacks(self, rank: int) -> str:
        """Where the threads of a rank are, to end a sentence."""
        there, pid = self._folder / f"stacks-{rank}", self._processes[rank].pid
        if not there.exists() or pid is None:
            return ", and has hardly begun"
        os.kill(pid, signal.SIGUSR2)
        time.sleep(STACKS_S)
        return f":\n{there.read_text()}"

    def _kill(self, why: str) -> None:
        self._ended = why
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()

    def close(self) -> None:
        """End the processes; kills those that do not end. No error if they were killed before."""
        if self._ended:
            return
        for pipe in self._pipes:
            pipe.send(None)
        stuck = []
        for rank, process in enumerate(self._processes):
            process.join(STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
                stuck.append(rank)
            self._pipes[rank].close()
        assert not stuck, f"ranks {stuck} did not end within {STOP_S:g} s"
        codes = [process.exitcode for process in self._processes]
        assert codes == [0] * self.size, f"exit codes {codes}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._ended:
            self._kill(f"{type(error).__name__}: {error}")


def _serve(
    rank: int, ranks: int, pipe: Connection, folder: Path, environment: dict[str, str], backend: str, timeout_s: float
) -> None:
    faulthandler.register(signal.SIGUSR2, (folder / f"stacks-{rank}").open("w"))
    os.environ.update(environment)
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    import inagg_host.torch  # noqa: F401  # registers the backend

    torch.set_num_threads(1)

    def start() -> None:
        files, limit = FileStore(str(folder / "store"), ranks), timedelta(seconds=timeout_s)
        dist.init_process_group(backend, store=files, rank=rank, world_size=ranks, timeout=limit)

    _answer(pipe, start)
    while (call := pipe.recv()) is not None:
        function, arguments = call
        _answer(pipe, function, *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()


def _answer(pipe: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        pipe.send((True, function(*arguments)))
    except Exception:
        pipe.send((False, traceback.format_exc()))
