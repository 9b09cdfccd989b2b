"""`--web`: the live view of a testbed's switch, wherever in the testbed that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import click

from inagg_switch.addresses import SettingsError, with_port
from inagg_switch.defaults import WEB_ADDRESS, WEB_PORT
from inagg_switch.service.http_server import OPENED, Listener
from inagg_switch.service.security import is_local
from inagg_testbed.option_types import OptionType


class WebAddress(OptionType):
    """HOST[:PORT] of this machine alone."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            address = with_port(str(value), WEB_PORT)
        except SettingsError as error:
            self.fail(str(error), param, ctx)
        if not is_local(address):
            self.fail(
                f"{address}: a testbed is for this machine: give an address such as {WEB_ADDRESS} (from "
                f"elsewhere: ssh -L {WEB_PORT}:{WEB_ADDRESS})",
                param,
                ctx,
            )
        return address


web_option: Final = click.option(
    "--web",
    type=WebAddress(),
    is_flag=False,
    flag_value=WEB_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Show what happens in a browser, too; without a value on {WEB_ADDRESS}.",
)


class LiveView(NamedTuple):
    """Where a live view is, None: there is none; and the options that have `inagg switch` serve it."""

    url: str | None = None
    options: tuple[str, ...] = ()


@contextmanager
def live_view(address: str | None) -> Iterator[LiveView]:
    """A live view at ``address``; none for None. It is opened here, so that a browser of this machine reaches it though
    the switch is in a network namespace. Raises click.ClickException."""
    if address is None:
        yield LiveView()
        return
    try:
        listener = Listener(address)
    except OSError as error:
        raise click.ClickException(
            f"cannot serve the live view on {address}: {error.strerror}; choose another address with --web, port 0 for "
            "any free one"
        ) from None
    with listener:
        listener.socket.listen()  # whoever comes before the switch serves waits for it
        yield LiveView(f"http://{listener.place}/", ("--web", f"{OPENED}{listener.socket.fileno()}"))
