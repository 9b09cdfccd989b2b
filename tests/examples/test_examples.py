"""Every example, run as its own docstring says: losses fall, and the switch did the sums, not the inner group."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inagg_testbed.switch_process import COMMAND, SwitchProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r"rank (\d+): loss ([\d.]+) -> ([\d.]+); the switch summed (\d+) tensors")
TIERS = {
    "lightning_trainer.py": "lightning",
    "lightning_fabric.py": "lightning",
    "accelerate_ddp.py": "accelerate",
    "hf_trainer.py": "accelerate",
    "torchft_ddp.py": "torchft",
    "torchft_diloco.py": "torchft",
    "ray_train.py": "ray",
}
SHARED = {"blobs.py"}
BY_NAME = {"many_gpus.py", "numpy_sums.py"}
"""Have tests of their own."""


def told(output: str) -> dict[int, tuple[float, float, int]]:
    """Rank -> its losses at the beginning and the end, and how many tensors the switch summed."""
    return {int(m[1]): (float(m[2]), float(m[3]), int(m[4])) for m in LINE.finditer(output)}


def ran(*command: str, **environment: str) -> str:
    """What a command printed that ended well."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def trained(script: str, *options: str, ranks: int = 2) -> dict[int, tuple[float, float, int]]:
    command = [*COMMAND, "testbed", "--workers", "2", *options, "--", sys.executable, str(EXAMPLES / script)]
    return check(ran(*command), ranks)


def check(output: str, ranks: int) -> dict[int, tuple[float, float, int]]:
    ranks_told = told(output)
    assert sorted(ranks_told) == list(range(ranks)), output
    for first, last, summed in ranks_told.values():
        assert last < first, output
        assert summed > 0, output
    return ranks_told


def scripts(tier: str | None) -> list[str]:
    found = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in SHARED)
    return [name for name in found if TIERS.get(name) == tier and name not in BY_NAME]


def test_every_example_is_run_here() -> None:
    assert set(TIERS) < {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts(None) == ["backend.py", "ddp_hook.py", "fsdp2.py"]


@pytest.mark.parametrize("script", scripts(None))
def test_an_example_of_pytorch_alone(script: str) -> None:
    trained(script)


def least_squares(ranks: int) -> list[tuple[float, float]]:
    """The first and the last loss of each rank in numpy_sums.py, with exact sums."""
    features, samples, steps, rate = 20_000, 8, 30, 0.05
    truth = np.random.default_rng(0).standard_normal(features)
    points = np.array([np.random.default_rng(1 + rank).standard_normal((samples, features)) for rank in range(ranks)])
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    weights, losses = np.zeros(features), []
    for _ in range(steps):
        errors = points @ (weights - truth)
        losses.append(np.mean(errors**2, axis=1))
        weights -= rate * np.einsum("rs,rsf->f", errors, points)
    return list(zip(losses[0].tolist(), losses[-1].tolist(), strict=True))


def test_numpy_arrays_without_pytorch() -> None:
    script = (EXAMPLES / "numpy_sums.py").read_text()
    assert "torch" not in script.partition('"""\n\n')[2]
    ranks_told = trained("numpy_sums.py")
    for rank, (first, last) in enumerate(least_squares(2)):
        assert ranks_told[rank][0] == pytest.approx(first, abs=0.001), "nothing is rounded yet"
        assert ranks_told[rank][1] == pytest.approx(last, rel=0.1), "gradients are, and that without bias"


def test_an_example_that_gets_no_sums_says_why() -> None:
    with SwitchProcess() as gone:
        there = gone.control
    command = [sys.executable, str(EXAMPLES / "numpy_sums.py")]
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "INAGG_SWITCH": there, "INAGG_RECONNECT": "0.5"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1
    assert f"no sums: cannot reach the switch at {there}" in done.stderr
    assert "Traceback" not in done.stderr

    environment["INAGG_SWITCH"] = ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1
    assert done.stderr == "no switch: pass it, or set INAGG_SWITCH\n"


def test_hosts_of_two_ranks() -> None:
    trained("many_gpus.py", "--local-size", "2", ranks=4)


@pytest.mark.lightning
@pytest.mark.parametrize("script", scripts("lightning"))
def test_an_example_of_lightning(script: str) -> None:
    trained(script)


@pytest.mark.accelerate
@pytest.mark.parametrize("script", scripts("accelerate"))
def test_an_example_of_hugging_face(script: str) -> None:
    trained(script)


@pytest.mark.torchft
@pytest.mark.parametrize("script", scripts("torchft"))
def test_an_example_of_torchft(script: str) -> None:
    trained(script)


@pytest.mark.ray
def test_the_example_of_ray_train() -> None:
    with SwitchProcess() as switch:
        check(ran(sys.executable, str(EXAMPLES / "ray_train.py"), INAGG_SWITCH=switch.control), ranks=2)


@pytest.mark.ray
def test_ray_train_goes_on_without_a_node_of_its_cluster(tmp_path: Path) -> None:
    with SwitchProcess() as switch:
        script = str(Path(__file__).parent / "ray_cluster.py")
        output = ran(sys.executable, script, str(tmp_path), INAGG_SWITCH=switch.control)
    check(output, ranks=2)
    assert "lost 1 of 2 nodes that trained" in output
    went_on = re.search(r"went on after step (\d+)", output)
    assert went_on is not None
    assert int(went_on[1]) > 0, "from a checkpoint"
