"""Ranks of a job, in a process that can be killed: python worker.py SWITCH JOB RANKS WORKERS OPTIONS."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import numpy as np

from inagg_host.allreduce import AllReduce


def work(rank: int, told: threading.Event, options: dict[str, Any]) -> None:
    """Sum ones for ever."""
    with AllReduce(rank=rank, **options) as all_reduce:
        values = np.ones(20_000, np.float32)
        while True:
            all_reduce(values, np.empty_like(values))
            if not told.is_set():
                told.set()
                print("summed", flush=True)


def main() -> None:
    switch, job, ranks, workers, options = sys.argv[1:]
    told = threading.Event()
    given = {"switch": switch, "job": job, "workers": int(workers), **json.loads(options)}
    threads = [threading.Thread(target=work, args=(rank, told, given)) for rank in json.loads(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
