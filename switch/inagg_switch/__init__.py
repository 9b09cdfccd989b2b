"""The aggregating switch: aggregation, data planes, control plane."""
