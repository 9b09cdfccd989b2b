"""The worker: protocol engine, transport, PyTorch adapters, compressors."""
