"""The simulator from the command line, at the root of the repository: `python -m tests.host.sim --help`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from .rates import print_rates
from .runs import BLOCKS, check_run, describe, make_run, make_tree_run
from .searches import print_searches
from .soak import SOAK_BLOCKS, soak


def replay(seed: int, blocks: int, trace: bool, tree: bool) -> bool:
    """Run ``seed`` again, and say how it went; whether well."""
    print(describe((make_tree_run if tree else make_run)(seed, blocks)), flush=True)
    try:
        print(check_run(seed, blocks, print if trace else None, tree=tree))
    except Exception:  # of any kind: to show it is what this is for
        traceback.print_exc()
        return False
    return True


def main() -> int:
    """The exit status: 0 if all went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.host.sim", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, metavar="N", help="run N once more, as a test that failed names it")
    what.add_argument("--soak", type=float, metavar="SECONDS", help="runs for so long, on all cores")
    what.add_argument("--search", action="store_true", help="all interleavings of small worlds (--slow: larger ones)")
    what.add_argument("--rates", action="store_true", help="virtual throughput by loss")
    parser.add_argument("--tree", action="store_true", help="with --seed and --soak: through trees of switches")
    parser.add_argument("--blocks", type=int, help=f"blocks of a run (default {BLOCKS}; with --soak {SOAK_BLOCKS})")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument(
        "--first", type=int, default=1_000_000, help="with --soak: the first seed (default %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="with --soak (default: one a core)")
    parser.add_argument("--slow", action="store_true", help="with --search: the larger worlds")
    given = parser.parse_args()
    if given.seed is not None:
        return 0 if replay(given.seed, given.blocks or BLOCKS, given.trace, given.tree) else 1
    if given.soak is not None:
        tally = soak(given.soak, given.first, given.blocks or SOAK_BLOCKS, given.processes, tree=given.tree)
        return 1 if tally.failed else 0
    if given.search:
        print_searches(given.slow)
    else:
        print_rates()
    return 0


if __name__ == "__main__":
    sys.exit(main())
