"""What a hook's state saves, and what of that it takes back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import equal
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.compress import Memory, parse
from inagg_host.config import ConfigError
from inagg_host.torch import InaggState, inagg_hook
from inagg_host.torch.checkpoint import load, save
from inagg_host.torch.compressed import Compression


def test_what_a_rank_of_a_larger_run_has_saved_is_refused() -> None:
    compressor = parse("ef+topk:k=0.1")
    saved = save(compressor, Compression(5), rank=1, ranks=4)
    assert load(compressor, saved, rank=1, ranks=4) == (5, {})
    with pytest.raises(ValueError, match="a run with 4 ranks, and here are 2: begin without it"):
        load(compressor, saved, rank=1, ranks=2)


def test_what_was_saved_stays_as_it_was_and_can_be_loaded_again() -> None:
    """In memory, too: as by a training that keeps the best of its states."""
    compressor, memories = parse("ef+topk:k=0.1"), {0: Memory(2, np.dtype(np.float32), 1, {"memory": np.ones(2)})}
    saved = save(compressor, Compression(5, memories), rank=0, ranks=1)
    memories[0].state["memory"] += 1
    for _ in range(2):
        _, loaded = load(compressor, saved, rank=0, ranks=1)
        assert loaded[0].state["memory"].tolist() == [1, 1]
        loaded[0].state["memory"] += 1


def trained(state: InaggState) -> bytes:
    """The state, pickled after a step."""
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    model.register_comm_hook(state, inagg_hook)
    model(torch.ones(1, 10)).sum().backward()
    return pickle.dumps(state)


def loaded(everywhere: bool) -> str:
    """What is said where each rank, or rank 0 for all of them (``everywhere``), has pickled its state."""
    with InaggState(compressor="ef+topk:k=0.1", min_bytes=0) as state:
        saved = [trained(state)]
    if everywhere:
        dist.broadcast_object_list(saved, 0)
    restored = pickle.loads(saved[0])
    try:
        again = pickle.loads(pickle.dumps(restored))
        again.job()
        again.close()
        trained(restored)
    except ConfigError as error:
        return str(error)
    finally:
        restored.close()
    return ""


def test_a_pickled_state_of_another_rank_is_refused_on_all_ranks(beside: World) -> None:
    assert equal(beside.run(loaded, False)) == ""
    assert "rank 1 of 2 was given the state of rank 0 of 2" in equal(beside.run(loaded, True))
