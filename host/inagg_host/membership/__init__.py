"""Being part of a job: joining, joining again, going on without the switch."""
