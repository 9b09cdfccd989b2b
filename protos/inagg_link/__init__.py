"""Links: batches of equal datagrams over UDP sockets, with seeded faults, captured for Wireshark.

Shared by switch and host. See `base` for the contract that all of them keep.
"""
