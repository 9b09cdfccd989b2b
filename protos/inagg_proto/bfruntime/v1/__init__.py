"""BF Runtime. All modules but this one are generated."""
