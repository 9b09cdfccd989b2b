"""What one group is told of another's failure: who leaves a group because of it says so, though the script has caught
the error, and does not leave the others to guess that their batches were too few."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import LARGE
from tests.host.torch.world import World

from inagg_host.errors import CLOSED_SUMMING, AllReduceError
from inagg_host.torch import InaggGroup, failures


@pytest.fixture(scope="module")
def three(make_world: Callable[..., World]) -> Iterator[World]:
    with make_world(3) as world:
        yield world


def test_an_error_counts_from_its_time_on() -> None:
    failures.note(AllReduceError("before"))
    then = failures.mark()
    assert failures.since(then) == ""
    failures.note(AllReduceError(f"{CLOSED_SUMMING}, as I have closed it"))
    assert failures.since(then) == ""
    failures.note(AllReduceError("rank 1 has been silent"))
    assert failures.since(then) == "AllReduceError: rank 1 has been silent"


def fail_in_one_of_two_groups(goes_on: bool) -> str:
    """Rank 0 ends the job that it has with rank 1, who has another one with rank 2, in which all has gone well, and
    leaves it; ``goes_on``: not before they have summed once more. What each is told."""
    rank, both = dist.get_rank(), [dist.new_group([0, 1]), dist.new_group([1, 2])]
    mine = [group for group in both if isinstance(group, InaggGroup)]
    for group in mine:
        dist.all_reduce(torch.ones(LARGE), group=group)
    dist.barrier()
    told = "nothing"
    if rank == 0:
        both[0].abort()
    if rank == 1:
        try:
            dist.all_reduce(torch.ones(LARGE), group=both[0])
        except RuntimeError as error:
            told = str(error)
    if rank and goes_on:
        dist.all_reduce(torch.ones(LARGE), group=both[1])
    if rank == 2:
        try:
            dist.all_reduce(torch.ones(LARGE), group=both[1])
        except RuntimeError as error:
            told = str(error)
    for group in mine:
        dist.destroy_process_group(group)
    dist.barrier()
    return told


def test_who_leaves_a_group_because_of_another_says_so(three: World) -> None:
    _, first, second = three.run(fail_in_one_of_two_groups, False)
    assert "its process group was aborted" in first
    assert "rank 0 has failed: AllReduceError" in second
    assert "its process group was aborted" in second
    assert "DistributedSampler" not in second


def test_who_has_summed_since_then_has_just_left(three: World) -> None:
    _, first, second = three.run(fail_in_one_of_two_groups, True)
    assert "its process group was aborted" in first
    assert "rank 0 has left the job" in second
