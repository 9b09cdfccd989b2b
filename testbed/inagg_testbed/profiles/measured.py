"""The computation of a step, measured on this machine's CPU, and kept: some of them take a minute."""

from __future__ import annotations

from multiprocessing.connection import Connection

from .. import cache
from ..bench.children import Child, crew
from .compute import Compute, measured
from .profile import Gradient

LIMIT_S = 1800.0
RUNS = 2


def _measure(connection: Connection, name: str, batch: int) -> None:
    """Child process: so that the model's memory is gone afterwards, and the caller need not import torch."""
    import torch

    from .trace import measure
    from .zoo import ZOO

    seen = measure(ZOO[name].make(), ZOO[name].inputs(batch), RUNS)
    connection.send((None, (seen.forward, seen.backward, seen.ready, torch.get_num_threads())))


def measured_compute(name: str, batch: int) -> Compute:
    """Forward and backward of ``batch`` examples on all cores, the fastest of two steps; from the cache, if there."""
    entry = f"compute-{name}-{batch}"
    if (kept := cache.load(entry)) is None:
        with crew() as children:
            children.append(Child(f"measurement of {name}", _measure, name, batch))
            forward_s, backward_s, ready, threads = children[0].receive(LIMIT_S)
        kept = cache.keep(entry, {"forward_s": forward_s, "backward_s": backward_s, "ready": ready, "threads": threads})
    backward_s = kept["backward_s"]
    gradients = [Gradient(gradient, elements, at / backward_s) for gradient, elements, at in kept["ready"]]
    source = f"measured: CPU, {kept['threads']} threads, batch {batch}, {kept['date']}"
    return measured(kept["forward_s"], backward_s, gradients, source)
