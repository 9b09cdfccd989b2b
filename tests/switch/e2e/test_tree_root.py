"""The root of a tree of real switches is killed and comes back: nobody helps, and no bit differs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.switch.e2e.test_trees import LIMITS, PATIENCE_S, leaf_of, same, sums

from inagg_testbed.switch_process import SwitchProcess

STEPS = 8
SMALL, LARGE = 20_000, 1_000_000
"""Elements. Of a large tensor some are on their way while others have come."""


@pytest.mark.parametrize(
    ("elements", "waits"),
    [
        pytest.param(SMALL, True, id="while_a_rank_is_late", marks=pytest.mark.slow),
        pytest.param(LARGE, False, id="while_all_send"),
    ],
)
def test_a_root_that_is_killed_and_comes_back_changes_no_bit(elements: int, waits: bool) -> None:
    """Leaves attach again by themselves, and ranks join again."""
    with ExitStack() as stack:
        root = stack.enter_context(SwitchProcess(*LIMITS))
        leaves = [stack.enter_context(leaf_of(root, name)) for name in ("a", "b")]
        reached, back = threading.Event(), threading.Event()

        def disturb(rank: int, step: int) -> None:
            if rank == 3 and step == 4:
                reached.set()
                assert not waits or back.wait(PATIENCE_S)

        where = [leaves[rank // 2].control for rank in range(4)]
        expected = sums([root.control] * 4, "flat", steps=STEPS, elements=elements)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                sums, where, "tree", steps=STEPS, elements=elements, between=disturb, reconnect_s=60.0
            )
            assert reached.wait(PATIENCE_S)
            root.kill()
            # by this thread: a switch ends with the one that started it
            stack.enter_context(SwitchProcess(*LIMITS, control=root.control, data=root.data))
            back.set()
            found = running.result(PATIENCE_S)
        assert same(found, expected)
