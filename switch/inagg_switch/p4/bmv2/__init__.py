"""The bmv2 switch as a `p4.plane.Plane`, over P4Runtime: a client of the part of it that we need."""
