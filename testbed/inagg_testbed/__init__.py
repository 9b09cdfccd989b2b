"""The command `inagg`, topologies, the demo training, benchmarks and reports."""
