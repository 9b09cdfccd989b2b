"""The sans-IO worker engine: see `engine.Engine`."""

from .engine import Codec, Engine, Epoch, MakeCodec, Operation, Outgoing, RanksDisagree, Refused, ShardLease

__all__ = [
    "Codec", "Engine", "Epoch", "MakeCodec", "Operation", "Outgoing", "RanksDisagree", "Refused", "ShardLease",
]  # fmt: skip
