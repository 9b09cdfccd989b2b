"""The sans-IO worker engine: see `engine.Engine`."""

from .engine import Engine, Epoch, Operation, Outgoing, RanksDisagree, Refused, ShardLease

__all__ = ["Engine", "Epoch", "Operation", "Outgoing", "RanksDisagree", "Refused", "ShardLease"]
