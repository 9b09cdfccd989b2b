"""The sans-IO worker engine: see `engine.Engine`."""

from .engine import Engine, Outgoing
from .epoch import Epoch, OutOfGenerations, RanksDisagree, Refused, ShardLease
from .operation import MakeCodec, Operation

__all__ = [
    "Engine", "Epoch", "MakeCodec", "Operation", "OutOfGenerations", "Outgoing", "RanksDisagree", "Refused",
    "ShardLease",
]  # fmt: skip
