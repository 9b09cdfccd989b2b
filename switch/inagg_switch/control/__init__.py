"""The control plane's decisions: no input, no output, no clock; `inagg_switch.service` serves them over gRPC.

`registry` has all jobs, `jobs` one of them, `members` its ranks, `states` their states, `join_checks` who may be a
rank, `admission` what fits, `leases` which slots, `epochs` what begins when all are there, `policy` the limits,
`events` what comes out, `stall_detector` and `explain` why a job waits.
"""
