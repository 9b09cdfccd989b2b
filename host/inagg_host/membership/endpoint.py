"""The socket of one rank for datagrams: where it is bound, and the groups that it listens to."""

from __future__ import annotations

import logging
from collections.abc import Callable

from inagg_host.config import is_loopback
from inagg_host.core import Epoch
from inagg_host.errors import AllReduceError
from inagg_link.addresses import Address
from inagg_link.base import Link
from inagg_link.groups import Group, GroupLink
from inagg_link.limits import advised
from inagg_link.udp import UdpLink

log = logging.getLogger("inagg")


class Endpoint:
    """One socket serves all shards, whose datagrams come from different addresses."""

    def __init__(self, wrap_link: Callable[[Link], Link] | None) -> None:
        self._wrap_link = wrap_link
        self._host = ""
        self.link: Link
        """The link, from `bind` on."""
        self.listens = True
        """Whether this rank can take results from a group, as far as it knows."""

    def bind(self, host: str, in_use: bool) -> Address:
        """The address of the socket, which is at ``host``, a literal address, unless it is ``in_use``: the way to the
        next of several switches may begin elsewhere. Raises `AllReduceError` if nothing could come from where it is, or
        if this machine does not have ``host``."""
        if in_use:
            if is_loopback(self._host) and not is_loopback(host):
                raise AllReduceError(
                    f"this rank sends from {self._host}, from where nothing leaves this machine, and the next switch "
                    f"is on another: with INAGG_HOST={host} it would have gone on"
                )
        elif host != self._host:
            self.close()
            self.link = self._groups = GroupLink(_open(host))
            self._host = host
            if self._wrap_link is not None:
                self.link = self._wrap_link(self._groups)
        return self.link.address

    def listen(self, epoch: Epoch) -> str | None:
        """Listen to the groups of an epoch, before anything is sent in it; why not, if that fails: then this rank must
        join again, and say that it cannot."""
        try:
            self._groups.listen([Group(s.group, s.address) for s in epoch.shards if s.group is not None])
        except (OSError, ValueError) as error:
            self.listens = False
            log.info(
                "rank %d: cannot listen to multicast, so the switch is to send to each rank: %s", epoch.rank, error
            )
            return f"rank {epoch.rank} cannot listen to multicast: {error}"
        return None

    def close(self) -> None:
        """No error if it is not bound."""
        if self._host:
            self._host = ""
            self.link.close()


def _open(host: str) -> UdpLink:
    try:
        return UdpLink((host, 0))
    except OSError as error:
        raise AllReduceError(
            f"cannot send datagrams from {host}: {advised(error)}. INAGG_HOST, if it is set, says from which address"
        ) from None
