"""The aggregation itself: datagrams in, datagrams out. No sockets, no clock, no threads.

`model` is the executable specification, one packet at a time; `aggregator` is the same, fast, and drives the compiled
`receive`, which asks `validation`, adds with `kernels` or `deferred_sum`, and keeps all in `state`.
"""
