"""Switches that run the P4 program: what they are told, as data, and how their counters are read.

Nothing here opens a connection: `plane.Plane` is what a P4Runtime or BF Runtime client implements.
"""
