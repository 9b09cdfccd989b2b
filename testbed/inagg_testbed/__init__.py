"""Subcommands of `inagg`, topologies, the demo training, benchmarks and reports."""

import logging

# Where it can write no home, Matplotlib makes a list of fonts each time, and warns of it. No user of ours minds.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
