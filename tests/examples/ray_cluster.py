"""The Ray example on a cluster of three nodes, one of which is lost when training has begun.

python tests/examples/ray_cluster.py FOLDER, with INAGG_SWITCH; prints what the example prints, and whence it went on.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
STEPS = 150


def checkpoints(folder: Path) -> int:
    """How many Ray has kept."""
    try:
        return len(list(folder.rglob("checkpoint_*/saved.pt")))
    except FileNotFoundError:  # a temporary folder has gone while it was looked into
        return 0


def lose_a_node(cluster: Any, nodes: list[Any], folder: Path) -> None:
    """One that trains, when Ray has kept some checkpoints: it hears of them some seconds later."""
    from ray.util import placement_group_table

    give_up_s = time.monotonic() + LIMIT_S
    while checkpoints(folder) < 4:
        if time.monotonic() > give_up_s:
            raise TimeoutError("no checkpoint was made")
        time.sleep(0.05)
    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    training = {node for group in groups for node in group["bundles_to_node_id"].values()}
    victim = next(node for node in nodes if node.node_id in training)
    cluster.remove_node(victim, allow_graceful=False)
    print(f"lost 1 of {len(training)} nodes that trained", flush=True)


def main(folder: Path) -> None:
    """Train."""
    os.environ["STEPS"] = str(STEPS)
    tempfile.tempdir = str(folder)  # where the example keeps its checkpoints
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import ray
    import ray_train
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        threading.Thread(target=lose_a_node, args=(cluster, nodes, folder), daemon=True).start()
        result = ray_train.main(cluster.address)
        print(f"went on after step {result.metrics['began_at']}", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
