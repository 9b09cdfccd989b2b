"""Without PyTorch: least squares with numpy arrays, sums as futures, and what to do when there are none.

inagg testbed --workers 2 -- python examples/numpy_sums.py
"""

from __future__ import annotations

import sys

import numpy as np

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.config import Config, ConfigError

FEATURES, SAMPLES, STEPS, RATE = 20_000, 8, 30, 0.05


def train(all_reduce: AllReduce, rank: int) -> list[float]:
    """Each rank has samples of its own; all walk along the sum of their gradients. The losses of this rank."""
    truth = np.random.default_rng(0).standard_normal(FEATURES).astype(np.float32)
    samples = np.random.default_rng(1 + rank).standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    samples /= np.linalg.norm(samples, axis=1, keepdims=True)
    weights = np.zeros(FEATURES, np.float32)
    losses = []
    for _ in range(STEPS):
        error = samples @ (weights - truth)
        gradient = np.empty_like(weights)
        gradients = all_reduce.submit(error @ samples, gradient)
        # Meanwhile. A sum of losses would be rounded as gradients are, by up to a factor of two; where it is wanted, a
        # job of its own sums it: AllReduce(job="losses", format="fix32").
        losses.append(float(error @ error / SAMPLES))
        weights -= RATE * gradients.result()  # all ranks get the same bits; waits no longer than INAGG_TIMEOUT
    return losses


def main() -> None:
    """RANK, WORLD_SIZE and INAGG_SWITCH say who this is; a launcher sets them."""
    try:
        config = Config.from_environment()
        with AllReduce() as all_reduce:
            losses = train(all_reduce, config.rank)
            counters = all_reduce.counters
    except ConfigError as error:  # an option is missing or wrong: nothing was begun
        sys.exit(f"{error}")
    except AllReduceError as error:  # the switch or a rank is gone: every rank is told, and this job is over
        sys.exit(f"no sums: {error}")
    sys.stdout.write(
        f"rank {config.rank}: loss {losses[0]:.3f} -> {losses[-1]:.3f}; "
        f"the switch summed {counters.operations} tensors ({counters.bytes_out:,} bytes sent)\n"
    )


if __name__ == "__main__":
    main()
