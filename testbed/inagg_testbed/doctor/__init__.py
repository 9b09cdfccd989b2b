"""`inagg doctor`: what of this machine is in the way of fast and correct sums, and what to do about it."""
