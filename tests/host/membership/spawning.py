"""How the processes that are to be killed are started: forked from one that has imported what they need."""

from __future__ import annotations

import multiprocessing

START_S = 120.0
CONTEXT = multiprocessing.get_context("forkserver")
# One server serves all tests of a run, and takes what it is told first: the same as in `tests.host.torch.world`.
CONTEXT.set_forkserver_preload(["inagg_host.torch", "tests.host.torch.preload"])
