"""BF Runtime: a client of the part that we need, and a Tofino switch as a `p4.plane.Plane` over it.

Tested against a server that we wrote from the interface; never on a Tofino.
"""
