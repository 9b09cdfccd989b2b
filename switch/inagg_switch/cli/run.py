"""Parts of a switch, opened one by one when its shards have begun to start: addresses, driver, service."""

from __future__ import annotations

import asyncio
import errno
from contextlib import ExitStack

import click

from inagg_link.limits import NO_THREAD, advised
from inagg_wire.layout import DATA_PORT

from ..addresses import SettingsError, split_address, why_not_bound
from ..driver import DriverError
from ..service.http_server import Listener
from ..service.security import SecurityError
from ..service.server import ServerError
from ..service.uplink_agent import UplinkError
from ..software.shard_process import ShardProcess
from ..software.software_driver import SoftwareDriver
from .leaf import Leaf
from .p4_settings import TofinoSettings
from .ready import serving
from .root import Listeners, Root
from .settings import Settings
from .shard_keeper import SwitchDriver
from .signals import EXIT_FAILED


class CannotServe(click.ClickException):
    """The switch could not start; the text says what to do."""

    exit_code = EXIT_FAILED


def run(settings: Settings, shards: list[ShardProcess]) -> int:
    """Serve with these ``shards`` until the end; the exit status. Raises `CannotServe`."""
    driver: SwitchDriver | None = None
    with ExitStack() as stack:
        try:
            http = listen_http(settings, stack)  # before what takes time: an address that cannot be is told at once
            driver = open_driver(settings, shards)
            if settings.parent is not None:
                return asyncio.run(Leaf(settings, settings.parent, driver, http.metrics).run())
            return asyncio.run(Root(settings, driver, http).run())
        except DriverError as error:
            hint = _other_addresses(settings) if settings.p4 is None and "in use" in str(error) else ""
            raise CannotServe(f"{error}{hint}") from None
        except (ServerError, SecurityError, UplinkError) as error:
            raise CannotServe(str(error)) from None
        except RuntimeError as error:
            if str(error) != NO_THREAD:
                raise
            raise CannotServe(advised(error)) from None
        finally:
            if driver is not None:
                driver.close()


def _other_addresses(settings: Settings) -> str:
    """Advice where the address for data is in use. Shards come first, so nobody has tried that of --listen yet: another
    switch would have both."""
    if _taken(settings.listen):
        others = "is another switch running? Choose other addresses with --data and --listen"
        return f", and so is {settings.listen}: {others}"
    # Who starts a second switch may have said --listen alone. That of data stays, as firewalls know it.
    why = ", as --listen is that of the control service alone" if settings.software.port == DATA_PORT else ""
    return f"; choose another address with --data{why}"


def _taken(address: str) -> bool:
    """Whether another process listens on host:port."""
    try:
        why = why_not_bound(*split_address(address))
    except SettingsError:  # unix:PATH
        return False
    return why is not None and why.errno == errno.EADDRINUSE


def listen_http(settings: Settings, stack: ExitStack) -> Listeners:
    """Take the addresses; ``stack`` closes them. Raises `ServerError`."""

    def bound(address: str | None, what: str, option: str) -> Listener | None:
        if address is None:
            return None
        with serving(what, address, option):
            return stack.enter_context(Listener(address))

    return Listeners(bound(settings.metrics, "metrics", "--metrics"), bound(settings.web, "the live view", "--web"))


def open_driver(settings: Settings, shards: list[ShardProcess]) -> SwitchDriver:
    """The driver of the switch, which is started where it is ours to start. Raises `DriverError`."""
    p4 = settings.p4
    if p4 is None:
        return SoftwareDriver(settings.software, shards)
    if isinstance(p4, TofinoSettings):
        from ..p4.tofino.tofino_plane import PROGRAM, tofino_driver

        return tofino_driver(p4.network, p4.address, program=p4.program or PROGRAM, device=p4.device, access=p4.access)
    from ..p4.bmv2.bmv2_plane import bmv2_driver

    return bmv2_driver(p4.program, p4.network, p4.address, device=p4.device, thrift=p4.thrift, access=p4.access)
