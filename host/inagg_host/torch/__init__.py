"""The PyTorch adapters: process-group backend, DDP communication hook, plain all-reduce of tensors.

Importing this registers the backend: `torch.distributed.init_process_group("inagg")`.
"""

from .backend import BACKEND, InaggGroup, register
from .hook import InaggState, inagg_hook
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
    "inagg_hook",
]

register()
