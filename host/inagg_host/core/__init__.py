"""The sans-IO worker engine: see `engine.Engine`."""

from .engine import Engine, Outgoing
from .epoch import Epoch, ShardLease
from .failure import OutOfGenerations, RanksDisagree, Refused
from .operation import Operation

__all__ = [
    "Engine", "Epoch", "Operation", "OutOfGenerations", "Outgoing", "RanksDisagree", "Refused",
    "ShardLease",
]  # fmt: skip
