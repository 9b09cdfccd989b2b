"""The examples of the compressors' README run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.host.compress.test_hook import train
from tests.host.torch.ranks import equal
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.compress import Contraction, Key, names, parse
from inagg_host.torch import InaggState, inagg_hook
from inagg_testbed.training import make_model

README = Path(__file__).parents[3] / "host/inagg_host/compress/README.md"
LINES_MAX = 30


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run_example(index: int, **given: Any) -> dict[str, Any]:
    exec(compile(examples()[index], f"{README.name}, example {index}", "exec"), given)
    return given


def use_the_hook() -> list[str]:
    given = run_example(0, DistributedDataParallel=DistributedDataParallel, network=make_model(0))
    with given["state"]:
        return train(given["model"], range(2))


def test_the_hook_is_used_as_it_says(beside: World) -> None:
    assert len(set(equal(beside.run(use_the_hook)))) == 2


def train_with_signs() -> tuple[list[str], float, float]:
    if "sign" not in names():
        run_example(1)
    with InaggState(compressor="ef+sign", min_bytes=0) as state:
        model = DistributedDataParallel(torch.nn.Linear(20, 1, bias=False))
        model.register_comm_hook(state, inagg_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        x, goal, losses, digests = torch.eye(20), torch.linspace(-1, 2, 20), [], []
        for _ in range(150):
            optimizer.zero_grad()
            loss = (model(x)[:, 0] - goal).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            digests.append(str(next(model.parameters()).tolist()))
        assert state.counters.inner == {"gather": 150}
        assert state.compression_counts["gathered-bytes"] == 150 * (4 + 4 + 3)
        return digests, losses[0], losses[-1]


def test_a_compressor_of_ones_own_has_few_lines_and_trains(beside: World) -> None:
    assert len(examples()[1].splitlines()) <= LINES_MAX
    _, first, last = equal(beside.run(train_with_signs))
    assert last < first / 100


def test_a_compressor_of_ones_own_keeps_its_promise() -> None:
    if "sign" not in names():
        run_example(1)
    sign = parse("sign")
    for d in (1, 7, 64):
        for x in (np.random.default_rng(d).standard_normal(d), np.eye(1, d)[0]):
            bound, error = sign.bound(d), x - sign(x, Key(1))
            assert isinstance(bound, Contraction)
            assert error @ error <= (1 - bound.kept) * (x @ x) + 1e-12


def test_the_table_names_all_compressors() -> None:
    table = README.read_text().split("## Which there are")[1].split("Bytes of an element")[0]
    for name in set(names()) - {"sign", "mine", "ef"}:
        assert f"`{name}`" in table, name
