"""The control plane as a gRPC service; what it decides is decided in `inagg_switch.control`.

`server` has addresses, TLS and health, `calls` the calls, `job_messages` their messages, `questions` those that only
read, `subscribers` those who watch. `controller` gives the core time, and `orders` carries out its orders on the
`driver_threads`. `control_client` is the other end.
"""
