"""A process group whose members are said, and said again: torch's fault tolerance (`torch.distributed._reconfigure`).

    dist.init_process_group("inagg", ..., enable_reconfigure=True)
    handles = ...  # each rank's dist._get_reconfigure_handle(), told to all by whatever knows who lives
    dist._reconfigure(uuid, handles, timeout=...).wait()

Each set of members is a job of its own on the switch. The interface is that of torch 2.15, which calls it experimental.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from inagg_host.config import ConfigError, literal_host
from inagg_host.errors import AllReduceError
from inagg_link.addresses import split_address
from inagg_link.sockopt import ends_of_way

from .backend import InaggGroup, come_together
from .forwarding import PLUMBING, ForwardingGroup
from .inner import make_inner
from .options import option
from .work import finished

REJOIN_LIMIT_S = 3.0
"""How long to wait for a member that fell silent, unless options say it: others can come together without it."""


class ReconfigureOptions(Protocol):
    """`torch._C._distributed_c10d.ReconfigureOptions`."""

    uuid: int
    handles: set[str] | list[str]
    timeout: timedelta | None


class _Nobody:
    """In place of the inner group and of the jobs while there are no members."""

    def __init__(self, alone: dist.ProcessGroup) -> None:
        """``alone`` answers what torch asks of any group."""
        self._alone = alone

    def __getattr__(self, name: str) -> Any:
        if name in PLUMBING or name == "_device_types":
            return getattr(self._alone, name)
        raise RuntimeError(
            "this process group has no members: call torch.distributed._reconfigure with the handles of all of them"
        )


class ReconfigurableGroup(InaggGroup):
    """An `InaggGroup` that has members from the first `reconfigure` on. Rank and size are those of the last one."""

    supports_reconfigure = True

    def __init__(self, timeout: timedelta, options: dict[str, Any] | None = None) -> None:
        """``timeout``: of operations, and of how long members wait for each other unless `reconfigure` says it."""
        # Torch asks the C++ part for names and a default backend, which cannot be changed later: a group of one.
        ForwardingGroup.__init__(self, make_inner(HashStore(), 0, 1, timeout), Counter(), 0, 1)
        self._alone = self.inner
        self._timeout, self._options = timeout, dict(options or {})
        if option("rejoin_limit_s", self._options) is None:
            self._options["rejoin_limit_s"] = REJOIN_LIMIT_S
        self._rank, self._size = 0, 1
        self._used: set[int] = set()
        self._meeting_place: TCPStore | None = None
        self._handle = ""
        self._leave()

    def get_reconfigure_handle(self) -> str:
        """Return a handle by which others reach this rank: where its store listens, and a name that no other has. It is
        the same as long as the group lives. Raises `ConfigError` where no switch is named or there is no way to it."""
        if self._meeting_place is None:
            host = self._host()
            self._meeting_place = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
            self._handle = f"inagg:{secrets.token_hex(8)}:{self._meeting_place.port}:{host}"
        return self._handle

    def reconfigure(self, options: ReconfigureOptions) -> dist.Work:
        """Leave the members of before, without a word to them, and come together with those of ``options.handles``: a
        list gives ranks by position, a set by order of the alphabet. All of them call this with the same, and with a
        ``uuid`` that none has used. When it returns, the group is theirs; the work is done.

        Raises ValueError or RuntimeError, with nothing changed, for handles or a ``uuid`` that cannot be; and
        `AllReduceError` if not all come in time, after which the group has no members.
        """
        handles = _ranked(options.handles)
        if self.get_reconfigure_handle() not in handles:
            raise ValueError("the handles have none of this process: give what its get_reconfigure_handle() returned")
        if options.uuid in self._used:
            raise RuntimeError(f"uuid {options.uuid} was already used: give a new one each time")
        self._used.add(options.uuid)
        self._leave()
        rank, size, label = handles.index(self._handle), len(handles), f"uuid-{options.uuid}"
        limit = options.timeout or self._timeout
        try:
            store = PrefixStore(f"{options.uuid}/{size}/", self._store_of(handles[0], limit))
            self.inner, self.jobs = come_together(store, rank, size, self._timeout, label, self._options, True, limit)
        except dist.DistError as error:
            raise AllReduceError(f"rank 0 of the new members went away, or does not answer: {error}") from error
        self.counts, self._rank, self._size = self.jobs.inner, rank, size
        return finished([])

    def _leave(self) -> None:
        if self.inner is not self._alone and not isinstance(self.inner, _Nobody):
            super().shutdown()
        nobody: Any = _Nobody(self._alone)
        self.inner = self.jobs = nobody

    def _store_of(self, handle: str, timeout: timedelta) -> TCPStore:
        if handle == self._handle:
            assert self._meeting_place is not None
            return self._meeting_place
        _, _, port, host = handle.split(":", 3)
        return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)

    def _host(self) -> str:
        host, switches = option("host", self._options), option("switch", self._options)
        if host:
            return literal_host(str(host))
        if not switches:
            raise ConfigError("no switch is named: set INAGG_SWITCH=host:port, as `inagg switch` prints it")
        switch = str(switches).split(",")[0].strip()
        try:
            return ends_of_way(*split_address(switch))[0]
        except (OSError, ValueError) as error:
            raise ConfigError(f"no way to the switch at {switch}: {error}") from error

    # --- the group ---

    def rank(self) -> int:
        """Among the present members."""
        return self._rank

    def size(self) -> int:
        """How many members there are."""
        return self._size

    getRank, getSize = rank, size  # noqa: N815  # C++ calls these

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit as `InaggGroup` does, also for the members that come next."""
        self._timeout = timeout
        if not isinstance(self.inner, _Nobody):
            super().set_timeout(timeout)

    def get_error(self) -> Exception | None:
        """Why the present members can sum nothing more; None if they can, or if there are none."""
        return None if isinstance(self.jobs, _Nobody) else super().get_error()

    def shutdown(self) -> None:
        """Leave the members."""
        self._leave()
        self._alone.shutdown()

    def abort(self) -> None:
        """End the job for all present members. `reconfigure` goes on."""
        if not isinstance(self.inner, _Nobody):
            super().abort()


def _ranked(handles: set[str] | list[str]) -> list[str]:
    ranked = sorted(handles) if isinstance(handles, set | frozenset) else list(handles)
    for handle in ranked:
        if not re.fullmatch(r"inagg:[^:]+:[0-9]+:.+", handle):
            raise ValueError(f"{handle!r} is no handle of this backend")
    if len(set(ranked)) != len(ranked):
        raise ValueError("a handle is there twice")
    return ranked
