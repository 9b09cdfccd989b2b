"""The worker's end of the control service."""
