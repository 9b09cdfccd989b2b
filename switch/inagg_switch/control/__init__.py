"""The control plane: jobs, leases, epochs and membership, served over gRPC.

What decides does no input or output and is given the time: `registry` (all jobs), `jobs` (one job), `leases`,
`admission`, `resume`, `explain`. What does input and output decides nothing: `service` (the gRPC calls),
`driving` (the calls to the switch), `server` (addresses, TLS, health), `metrics` (Prometheus). `client` and `cli` are
the command line.
"""
