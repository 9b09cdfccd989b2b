"""P4Runtime: a client of the part that we need, and the bmv2 switch as a `p4.plane.Plane` over it."""
