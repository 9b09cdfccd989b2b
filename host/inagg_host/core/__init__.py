"""The sans-IO worker engine: see `engine.Engine`.

One all-reduce has these names on its way, from the outside in:

- `inagg_host.task.Task`: a call of `AllReduce`; a `Request`, the caller's array and the future (`io.futures.Work`);
- `operation.Request`: what the engine is to do, without who waits for it;
- `operation.Operation`: a request that the engine has begun, with its memory and its record;
- `state.OPERATION`: that record, by which compiled code knows an operation.
"""

from .engine import Engine, Outgoing
from .epoch import Epoch, ShardLease
from .failure import OutOfGenerations, RanksDisagree, Refused
from .operation import Operation

__all__ = [
    "Engine", "Epoch", "Operation", "OutOfGenerations", "Outgoing", "RanksDisagree", "Refused",
    "ShardLease",
]  # fmt: skip
