"""The control plane's decisions: no input, no output, no clock; `inagg_switch.service` serves them over gRPC.

`registry` has the calls for jobs, `job_table` which there are, `jobs` one of them; of that, `roster` and `members`
the ranks, `epochs` what begins when all are there, `grace_period` how long it waits for them, `states` the states.
`join_checks` has who may be a rank, `admission` what fits, `leases` which slots, `policy` the limits, `events` what
comes out, `stall_detector` and `explain` why a job waits.
"""
