"""The software switch: an aggregator on sockets. `software_driver` starts one `shard_process` for each `shard`; in each
of them a `data_plane` runs the compiled `loop`. `multicast` sends results to groups, `recording` keeps what came and
went.
"""
