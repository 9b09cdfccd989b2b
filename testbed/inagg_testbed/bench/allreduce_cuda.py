"""How fast an all-reduce of CUDA tensors is: through the switch, Gloo, and NCCL, which refuses ranks that share a GPU.

As `allreduce`: real worker processes over loopback, and systems in turns. Each run is timed on every rank from a common
barrier until the device has the sums; the slowest rank counts. Ranks take the machine's GPUs in turn. Processes that
share one take turns on it, a millisecond each, whatever they do: so on a machine with one it is worth a look how a rank
fares that has it alone, and the others' tensors in the host's memory.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from inagg_switch.text import count_text

from ..progress import Doing
from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from .children import Child, ask, common_barrier, crew, gloo_rank, receive_all, requests, slowest
from .cuda import copy_bandwidths, device_of
from .options import size_text
from .turns import in_turns

START_LIMIT_S, RUN_LIMIT_S = 300.0, 600.0
ON_HOST = "inagg cpu"
"""The same tensor in the host's memory."""


def _worker(
    connection: Connection, rank: int, workers: int, gpus: int, options: dict[str, Any], store: str, barrier: Barrier
) -> None:
    """A rank: joins all systems, says which there are, then does the runs that it is told and reports their seconds,
    those of the processor, and those until submitting returns."""
    with gloo_rank(rank, workers, store):
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
            for system, elements, runs in requests(connection):
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
    window: int | None, progress: Doing = lambda _: None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Lines of results: the bandwidth of copies, then for each size one per system, and one that compares them. The
    tensors of so many ranks are on ``gpus``. CPU time, and the time until submitting returns, are those of rank 0.
    ``progress`` is told the start of the workers, and each size."""
    options = {"format": format_, "job": "cuda"} | ({} if window is None else {"window": window})
    shard_options = ["--shards", str(shards)] if shards > 1 else []
    progress(f"starting {count_text(workers, 'worker')}")
    with TemporaryFolder("bench") as folder, SwitchProcess(*shard_options) as switch, crew() as ranks:
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

        def run(elements: int, system: str, runs: int) -> tuple[list[float], tuple[float, float]]:
            found = ask(ranks, (system, elements, runs), RUN_LIMIT_S)
            _, cpu_s, submit_s = found[0]
            return slowest(times for times, *_ in found), (cpu_s, submit_s)

        for size in sizes:
            elements = size // 4
            progress(f"{count_text(workers, 'worker')}, {format_}, {size_text(size)}")
            times, found = in_turns(partial(run, elements), systems, seconds, whole)
            cpu = {s: statistics.median(cpu_s for cpu_s, _ in found[s]) for s in systems}
            medians = {s: statistics.median(times[s]) for s in systems}
            for system in systems:
                yield about | {
                    "system": system,
                    "format": format_ if system in ("inagg", ON_HOST) else "float32",
                    "elements": elements,
                    "median_s": medians[system],
                    "elements_per_s": elements / medians[system],
                    "cpu_s": cpu[system],
                    "submit_s": statistics.median(submit_s for _, submit_s in found[system]),
                    "runs": len(times[system]),
                }
            compared = {f"ratio_to_{s}": medians[s] / medians["inagg"] for s in ("gloo", "nccl") if s in systems}
            compared["cpu_to_host_tensor"] = cpu["inagg"] / cpu[ON_HOST]
            yield about | {"format": format_, "elements": elements} | compared
