"""How fast an all-reduce of CUDA tensors is: through the switch, Gloo, and NCCL, which refuses ranks that share a GPU.

As `allreduce`: real worker processes over loopback, and systems in turns. Each run is timed on every rank from a common
barrier until the device has the sums; the slowest rank counts. Ranks take the machine's GPUs in turn. Processes that
share one take turns on it, a millisecond each, whatever they do: so on a machine with one it is worth a look how a rank
fares that has it alone, and the others' tensors in the host's memory.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from .cuda import copy_bandwidths, device_of
from .load import Child, common_barrier, crew, receive_all
from .turns import turns

START_LIMIT_S, RUN_LIMIT_S = 300.0, 600.0
ON_HOST = "inagg cpu"
"""The same tensor in the host's memory."""


def _worker(
    connection: Connection, rank: int, workers: int, gpus: int, options: dict[str, Any], store: str, barrier: Barrier
) -> None:
    """A rank: joins all systems, says which there are, then does the runs that it is told and reports their seconds,
    those of the processor, and those until submitting returns."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    from inagg_host.torch import TensorAllReduce

    host = torch.device("cpu")
    device = device_of(rank) if rank < gpus else host
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event

    def there() -> None:
        """Wait until the device has done all: as torch.cuda.synchronize, which keeps a processor busy meanwhile."""
        if device.type == "cuda":
            event = make(blocking=True)
            event.record()
            event.synchronize()

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    with TensorAllReduce(rank=rank, workers=workers, **options) as sums:
        systems: dict[str, Callable[[torch.Tensor], Any]] = {
            "inagg": sums.submit, ON_HOST: sums.submit, "gloo": partial(dist.all_reduce, async_op=True),
        }  # fmt: skip
        if dist.is_nccl_available() and gpus == workers:
            try:
                nccl = dist.new_group(backend="nccl")
                dist.all_reduce(torch.ones(1, device=device), group=nccl)
                there()
                systems["nccl"] = partial(dist.all_reduce, group=nccl, async_op=True)
            except (RuntimeError, dist.DistBackendError) as error:
                connection.send((None, (None, f"no NCCL here: {str(error).splitlines()[0]}")))
        connection.send((None, (list(systems), copy_bandwidths() if rank == 0 else {})))
        while True:
            system, elements, runs = connection.recv()
            generator = torch.Generator().manual_seed(rank)
            values = torch.randn(elements, generator=generator).to(host if system == ON_HOST else device)
            buffer, seconds, cpu_s, submit_s = torch.empty_like(values), [], 0.0, 0.0
            for _ in range(runs):
                buffer.copy_(values)
                there()
                barrier.wait()
                used = resource.getrusage(resource.RUSAGE_SELF)
                start_s = time.perf_counter()
                work = systems[system](buffer)
                submit_s += time.perf_counter() - start_s
                work.wait()
                there()
                seconds.append(time.perf_counter() - start_s)
                after = resource.getrusage(resource.RUSAGE_SELF)
                cpu_s += after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
                barrier.wait()
            connection.send((None, (seconds, cpu_s / runs, submit_s / runs)))


def bench_allreduce_cuda(
    workers: int, gpus: int, format_: str, sizes: Sequence[int], *, seconds: float, whole: bool, shards: int,
    window: int | None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Lines of results: the bandwidth of copies, then for each size one per system, and one that compares them. The
    tensors of so many ranks are on ``gpus``. CPU time, and the time until submitting returns, are those of rank 0."""
    with TemporaryFolder("bench") as folder, crew() as ranks:
        options = {"format": format_, "job": "cuda"} | ({} if window is None else {"window": window})
        with SwitchProcess(*(["--shards", str(shards)] if shards > 1 else [])) as switch:
            barrier = common_barrier(workers)
            for rank in range(workers):
                given = {"switch": switch.control, **options}
                ranks.append(Child(f"rank {rank}", _worker, rank, workers, gpus, given, f"{folder}/store", barrier))
            answers = receive_all(ranks, START_LIMIT_S)
            about: dict[str, Any] = {"bench": "allreduce", "device": "cuda", "workers": workers, "gpus": gpus}
            if answers[0][0] is None:
                yield about | {"system": "nccl", "format": "float32", "skipped": answers[0][1]}
                answers = receive_all(ranks, START_LIMIT_S)
            systems: list[str] = answers[0][0]
            yield about | {"copy_bytes_per_s": answers[0][1]}

            def run(system: str, elements: int, runs: int) -> tuple[list[float], float, float]:
                for child in ranks:
                    child.send((system, elements, runs))
                found = receive_all(ranks, RUN_LIMIT_S)
                slowest = [max(times) for times in zip(*(times for times, *_ in found), strict=True)]
                return slowest, *found[0][1:]

            for size in sizes:
                elements = size // 4
                for system in systems:
                    run(system, elements, 2)
                estimate_s = max(statistics.median(run(s, elements, 3)[0]) for s in systems)
                times: dict[str, list[float]] = {s: [] for s in systems}
                cpu: dict[str, list[float]] = {s: [] for s in systems}
                submitting: dict[str, list[float]] = {s: [] for s in systems}
                for runs in turns(estimate_s, seconds, len(systems), whole):
                    for system in systems:
                        taken, cpu_s, submit_s = run(system, elements, runs)
                        times[system] += taken
                        cpu[system].append(cpu_s)
                        submitting[system].append(submit_s)
                medians = {s: statistics.median(times[s]) for s in systems}
                for system in systems:
                    yield about | {
                        "system": system,
                        "format": format_ if system in ("inagg", ON_HOST) else "float32",
                        "elements": elements,
                        "median_s": medians[system],
                        "elements_per_s": elements / medians[system],
                        "cpu_s": statistics.median(cpu[system]),
                        "submit_s": statistics.median(submitting[system]),
                        "runs": len(times[system]),
                    }
                compared = {f"ratio_to_{s}": medians[s] / medians["inagg"] for s in ("gloo", "nccl") if s in systems}
                compared["cpu_to_host_tensor"] = statistics.median(cpu["inagg"]) / statistics.median(cpu[ON_HOST])
                yield about | {"format": format_, "elements": elements} | compared
