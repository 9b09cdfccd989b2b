"""P4Runtime 1.x. All modules but this one are generated."""
