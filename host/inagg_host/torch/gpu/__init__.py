"""Kernels for tensors on a device, and what launches them."""
