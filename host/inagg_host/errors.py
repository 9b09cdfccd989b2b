"""What users catch."""

from __future__ import annotations


class AllReduceError(RuntimeError):
    """The sums cannot be had: the switch or a rank is gone, or refuses. Every rank that waits gets one."""
