"""A rank of a device mesh that is killed: what those are told that have a group with it, and those that have none."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tests.host.torch.test_ends import running

SCRIPT = Path(__file__).parent / "mesh_script.py"


@pytest.mark.slow
def test_a_killed_rank_is_named_by_fsdps_gathers_and_no_sampler_is_blamed(switch: str) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    shared = {
        "INAGG_SWITCH": switch, "INAGG_MIN_BYTES": "0", "INAGG_JOB": "mesh", "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    with ExitStack() as stack:
        ranks = [stack.enter_context(running(str(SCRIPT), RANK=str(rank), **shared)) for rank in range(4)]
        zero, one, two = [rank.until("was told: ") for rank in ranks[:3]]
    for told, group in ((one, "1-3"), (two, "2-3")):  # in the numbers of the group
        assert "AllReduceError: " in told
        assert f"/{group}'" in told
        assert "rank 1 of job 'mesh-" in told or "the connection of rank 1 broke off" in told
    assert "the inner group says: " in two, "it is a gather of the parameters that fails first"
    assert "has failed: AllReduceError: " in zero
    assert "DistributedSampler" not in zero
