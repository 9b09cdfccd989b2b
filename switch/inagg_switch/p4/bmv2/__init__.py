"""The bmv2 program's entries and counters, and a bmv2 switch as a `p4.plane.Plane`, over P4Runtime."""
