"""A Tofino switch as a `p4.plane.Plane`, over BF Runtime: a client of the part of it that we need.

Tested against a server that we wrote from the interface; never on a Tofino.
"""
