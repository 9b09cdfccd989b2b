"""The command `inagg testbed`: a switch, workers and their links on one machine, for your own script."""
