"""Being part of a job: joining, joining again, going on without the switch."""

import os
import sys

# gRPC's core prints its own account of a connection that fails, once a second, above what this package says. It reads
# this when it is first imported; who sets it, or has imported gRPC before, has what he wants. What others start from
# this process is not to inherit it.
if "grpc" not in sys.modules and "GRPC_VERBOSITY" not in os.environ:
    os.environ["GRPC_VERBOSITY"] = "ERROR"
    try:
        import grpc as grpc
    finally:
        del os.environ["GRPC_VERBOSITY"]
