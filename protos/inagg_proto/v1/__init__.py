"""Version 1 of the control service, package ``inagg.v1``. All modules but this one are generated."""
