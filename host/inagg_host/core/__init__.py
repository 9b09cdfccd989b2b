"""The sans-IO worker engine: see `engine.Engine`."""

from .engine import Engine, Outgoing
from .epoch import Epoch, OutOfGenerations, RanksDisagree, Refused, ShardLease
from .operation import Operation

__all__ = [
    "Engine", "Epoch", "Operation", "OutOfGenerations", "Outgoing", "RanksDisagree", "Refused",
    "ShardLease",
]  # fmt: skip
