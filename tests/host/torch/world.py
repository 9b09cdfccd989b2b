"""Ranks in processes of their own that stay, so that many tests share the seconds it takes to start them."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 120.0
RUN_S = 120.0
STOP_S = 20.0


class RankError(AssertionError):
    """What went wrong on which rank."""


class World:
    """``ranks`` processes that are in a process group and call what they are given, all at once."""

    def __init__(
        self, ranks: int, folder: Path, environment: Mapping[str, str], backend: str = "inagg", timeout_s: float = 60.0
    ) -> None:
        self.size = ranks
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
                args=(rank, ranks, theirs, str(folder / "store"), settings, backend, timeout_s),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        self._gather(START_S, "start")

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = RUN_S) -> list[Any]:
        """Call a function of a module on all ranks; what it returned, by rank. Raises `RankError` if any raised."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return self._gather(timeout_s, function.__name__)

    def _gather(self, timeout_s: float, what: str) -> list[Any]:
        results, errors = [], []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(timeout_s):
                errors.append(f"rank {rank} has not answered to {what} within {timeout_s:g} s")
                continue
            good, result = pipe.recv()
            results.append(result)
            if not good:
                errors.append(f"rank {rank}: {result}")
        if errors:
            raise RankError("\n".join(errors))
        return results

    def close(self) -> None:
        """End the processes; kills those that do not end."""
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
        else:
            for process in self._processes:
                process.kill()
                process.join()


def _serve(
    rank: int, ranks: int, pipe: Connection, store: str, environment: dict[str, str], backend: str, timeout_s: float
) -> None:
    os.environ.update(environment)
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    import inagg_host.torch  # noqa: F401  # registers the backend

    torch.set_num_threads(1)

    def start() -> None:
        files, limit = FileStore(store, ranks), timedelta(seconds=timeout_s)
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
