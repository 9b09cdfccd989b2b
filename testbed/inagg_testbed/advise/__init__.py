"""Whether in-network aggregation would help: a cost model, fitted on this machine, and compared with measurements."""
