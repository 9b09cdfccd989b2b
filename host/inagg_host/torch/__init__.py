"""The PyTorch adapters: process-group backend, DDP communication hook, plain all-reduce of tensors.

The backend needs no import: torch finds it (`inagg_host.autoload`). Importing this registers it where torch was told
not to look for backends (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
"""

import os

# In processes that are forked, as a DataLoader's workers are, gRPC would start its threads again, and these may crash
# (1.85.1, seen in two of some thousand forks). It reads this when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

try:
    import torch  # noqa: F401  # asked for first, to say how to get it
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    text = "inagg_host.torch needs PyTorch, which is not installed. Install: pip install '.[torch]' (in inagg's clone)"
    raise ModuleNotFoundError(text, name="torch") from None

from inagg_host.autoload import BACKEND, register

from .backend import InaggGroup
from .formats import exact, lossy
from .hook import inagg_hook
from .hook_state import InaggState
from .options import Options, configure
from .tensors import TensorAllReduce
from .work import TensorWork

__all__ = [
    "BACKEND",
    "InaggGroup",
    "InaggState",
    "Options",
    "TensorAllReduce",
    "TensorWork",
    "configure",
    "exact",
    "inagg_hook",
    "lossy",
]

register()
