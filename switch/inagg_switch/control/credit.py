"""Credit: the number of blocks that each rank may have out, so that the windows of all jobs together fit the receive
buffers of switches.

A window is what slots allow, and results depend on it; credit is what there is room for now, and they do not. What
the sockets of a switch hold is divided evenly among all who send to it, ranks or switches below: a burst of all of them
(incast) then finds room. Ranks hear of it when they join, and with heartbeats, as jobs come and go; so for one interval
of heartbeats after a job has begun there can be more out than there is room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from inagg_wire.layout import Op

from ..binding import Binding
from .events import Epoch


def block_bytes(binding: Binding) -> int:
    """Bytes that a child sends for a block."""
    return binding.parts * binding.contribution_bytes(Op.SUM)


class Credit:
    """The senders that share the receive buffers of each switch."""

    def __init__(self, receive_bytes: Callable[[str], int | None]) -> None:
        """``receive_bytes``: of each shard's socket, by switch; None: it has none, or nobody knows."""
        self._receive_bytes = receive_bytes
        self._epochs: dict[int, Epoch] = {}
        self._senders: Counter[str] = Counter()

    def update(self, job: int, epoch: Epoch | None) -> None:
        """Note that ``epoch`` of job number ``job`` runs now; None: none does."""
        before = self._epochs.get(job)
        if before is epoch:
            return
        if before is not None:
            for name, bindings in before.by_switch.items():
                self._senders[name] -= len(bindings[0].children)
            del self._epochs[job]
        if epoch is not None:
            for name, bindings in epoch.by_switch.items():
                self._senders[name] += len(bindings[0].children)
            self._epochs[job] = epoch

    def blocks(self, epoch: Epoch, window: int) -> int:
        """Number of blocks of a shard that each rank of a job with that ``window`` may have out: at least one."""
        most = window
        for name, (binding, *_) in epoch.by_switch.items():
            room = self._receive_bytes(name)
            if room is not None:
                senders = max(self._senders[name], len(binding.children))
                most = min(most, room // senders // block_bytes(binding))
        return max(1, most)
