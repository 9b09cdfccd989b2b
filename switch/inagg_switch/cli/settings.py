"""Settings of `inagg switch`, checked as far as they can be without opening anything."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from inagg_wire.layout import CONTROL_PORT

from ..addresses import (
    NotYet,
    SettingsError,
    check_ports,
    data_address,
    is_here,
    is_unix,
    resolved,
    split_address,
    with_port,
)
from ..control.policy import Policy
from ..defaults import DRAIN_S, METRICS_PORT, WEB_PORT
from ..p4.builds import LEAF, Build
from ..service.access import Access
from ..service.http_server import check_http_address
from ..service.security import OPERATOR, Security, SecurityError
from ..software.config import SoftwareConfig
from .p4_settings import Bmv2Settings, TofinoSettings, p4_from
from .software_settings import software_from

READ: Final = (
    "secret_file", "tls_cert", "tls_key", "client_ca", "parent_ca", "parent_secret_file", "network", "p4_ca", "p4_cert",
    "p4_key",
)  # fmt: skip
"""Options that name files which are read. Two of them may name the same one."""


@dataclass(frozen=True, slots=True)
class ParentSettings:
    """The switch above, in a tree. ``address``: host:port of its control service; ``name``: of this switch."""

    address: str
    name: str
    access: Access


@dataclass(frozen=True, slots=True)
class Settings:
    """One switch."""

    listen: str
    """Address of the control service: host:port or unix:PATH."""
    software: SoftwareConfig
    p4: Bmv2Settings | TofinoSettings | None
    """Drive this switch, and start no data plane here; None: ``software`` is the switch."""
    policy: Policy
    security: Security
    metrics: str | None
    """Address of the metrics, host:port; None: there are none."""
    web: str | None
    """Address of the live view, host:port; None: there is none."""
    drain_s: float
    shard_restarts: int
    """Restarts in a minute of shards that died, at most."""
    ready_file: Path | None
    announce: bool
    """Whether to print lines for a person on standard output when it serves."""
    parent: ParentSettings | None = None
    """The switch above; None: this one has a registry of its own."""


def settings_from(options: Mapping[str, Any], secret: str | None) -> Settings:
    """The settings that command-line options (by the names of their parameters) say. ``secret``: of the environment.

    Raises `SettingsError`, and `NotYet` for what may be right later.
    """
    # Some are read again, or written, when the working directory may have been removed.
    options = {name: value.absolute() if isinstance(value, Path) else value for name, value in options.items()}
    check_names(options)
    addresses = addresses_from(options)
    try:
        security = security_from(options, secret, addresses)
        p4 = p4_from(options)
        policy = policy_from(options)
    except SettingsError:
        raise
    except ValueError as error:  # SecurityError is one
        raise SettingsError(str(error)) from None
    parent = parent_from(options, secret)
    if parent is not None:
        check_parent(parent, addresses, p4)
    if isinstance(p4, Bmv2Settings):
        check_role(p4.program, parent)
    return Settings(
        listen=addresses.listen,
        software=software_from(options, addresses.host, addresses.port),
        p4=p4,
        policy=policy,
        security=security,
        metrics=addresses.metrics,
        web=addresses.web,
        drain_s=DRAIN_S if options["drain"] is None else options["drain"],
        shard_restarts=options["shard_restarts"],
        ready_file=options["ready_file"],
        announce=options["log_format"] == "human",
        parent=parent,
    )


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of one switch: `Settings.listen`, `Settings.metrics` and `Settings.web`, and its data planes."""

    listen: str
    host: str
    """The literal address of the data planes."""
    port: int
    """UDP port of the first shard; 0: any."""
    metrics: str | None
    web: str | None


def addresses_from(options: Mapping[str, Any]) -> Addresses:
    """The addresses that are asked for, with their usual ports. Raises `SettingsError`."""
    listen = str(options["listen"])
    if not is_unix(listen):
        listen = with_port(listen, CONTROL_PORT)
    host, port = data_address(listen, options["data"])
    check_ports(port, options["shards"])
    metrics, web = (
        with_port(options[name], usual) if options[name] is not None else None
        for name, usual in (("metrics", METRICS_PORT), ("web", WEB_PORT))
    )
    check_services({"--listen": listen, "--metrics": metrics, "--web": web})
    return Addresses(listen, host, port, metrics, web)


def security_from(options: Mapping[str, Any], secret: str | None, addresses: Addresses) -> Security:
    """TLS, secrets and operators, as asked for and as good as ``addresses`` need. Raises ValueError."""
    secret_file = options["secret_file"]
    security = Security(
        certificate=options["tls_cert"],
        key=options["tls_key"],
        client_ca=options["client_ca"],
        secret=secret if secret_file is None else None,
        secret_file=secret_file,
        operators=frozenset(options["operator"]) or frozenset({OPERATOR}),
        insecure_anywhere=options["insecure"],
    )
    security.check_address(addresses.listen)
    try:
        security.check_files()
    except SecurityError as error:
        raise NotYet(str(error)) from None
    if options["operator"] and options["parent"] is None and not security.named(security.secrets()):
        raise SettingsError(
            "--operator says nothing where callers have no names: give them some too, by lines `name: secret` in "
            "--secret-file, or by certificates and --client-ca"
        )
    for address, what in ((addresses.metrics, "the metrics"), (addresses.web, "the live view")):
        if address is not None:
            check_http_address(address, security, what)
    return security


def policy_from(options: Mapping[str, Any]) -> Policy:
    """The limits that are asked for. Raises ValueError."""
    return Policy(
        **{field: options[name] for field, name in policy_options(options).items() if options[name] is not None}
    )


def check_parent(parent: ParentSettings, addresses: Addresses, p4: Bmv2Settings | TofinoSettings | None) -> None:
    """Raises `SettingsError` if ``parent`` is this switch, or if datagrams between the two cannot come."""
    if parent.address == addresses.listen:
        raise SettingsError(f"--parent {parent.address} is this switch itself: name the switch above it")
    if p4 is None and ipaddress.ip_address(addresses.host).is_loopback and not is_here(parent.address):
        raise SettingsError(
            f"--parent {parent.address} is another machine, and nothing comes to it from {addresses.host}, where the "
            "data planes of this switch are: give --listen, or --data, an address that it reaches"
        )


def check_role(program: Build, parent: ParentSettings | None) -> None:
    """Raises `SettingsError` unless ``program``, of bmv2, is for a leaf just where there is a ``parent``."""
    if (program.role == LEAF) != (parent is not None):
        raise SettingsError(
            f"the program {program.name} is for a leaf of a tree: say with --parent what is above it"
            if parent is None
            else f"--parent needs a program for a leaf of a tree, such as nat8-128-leaf; {program.name} is none"
        )


def check_names(options: Mapping[str, Any]) -> None:
    """Raises `SettingsError` if what is written, or removed, is what another option names as well, or if the socket of
    --listen has no name."""
    option_of: dict[Path, str] = {}
    for name, file in _written(options):
        option, key = f"--{name.replace('_', '-')}", _any_start(file)
        if option_of.setdefault(key, option) != option:
            raise SettingsError(_same_file(option_of[key], option, file))
    for name in READ:
        if options[name] is not None and (key := _any_start(options[name])) in option_of:
            raise SettingsError(_same_file(option_of[key], f"--{name.replace('_', '-')}", options[name]))


def _same_file(one: str, other: str, file: Path) -> str:
    return f"{one} and {other} are the same file, {file}, which would be lost: give each a file of its own"


def _written(options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files that a switch makes, with the names of their options. Raises `SettingsError`."""
    kind, colon, path = str(options["listen"]).partition(":")
    if kind in ("unix", "unix-abstract") and not path.strip("/"):
        raise SettingsError(f"--listen {kind}{colon} names no socket: give its path, as in unix:/run/inagg.socket")
    if kind == "unix":
        yield "listen", Path(path).absolute()
    if options["ready_file"] is not None:
        yield "ready_file", options["ready_file"]
    software = SoftwareConfig(capture=options["capture"], record=options["record"])
    for name, of_shard in (("capture", software.capture_of), ("record", software.record_of)):
        for shard in range(options["shards"]):
            file = of_shard(shard)
            if file is not None:
                yield name, file


def _any_start(file: Path) -> Path:
    """The file that is really meant, without what `SoftwareConfig` adds when a shard is started again."""
    file = file.resolve()
    return file.with_name(re.sub(r"\.start\d+$", "", file.stem) + file.suffix)


def check_services(address_of: Mapping[str, str | None]) -> None:
    """Raises `SettingsError` if two services, by their options, are to have the same address: host:port, unix:PATH, or
    None of one that there is not."""
    there = [(option, address) for option, address in address_of.items() if address and not is_unix(address)]
    for at, (option, address) in enumerate(there):
        for before, other in there[:at]:
            if _share(address, other):
                raise SettingsError(f"{before} and {option} are both {address}: give each a port of its own")


def _share(one: str, other: str) -> bool:
    """Whether two servers that listen on these addresses (host:port) would get in each other's way."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    if port != other_port or not port:  # 0: any that is free
        return False
    try:
        addresses = {ipaddress.ip_address(resolved(name)) for name in (host, other_host)}
    except OSError:  # of which those tell that take the address
        return host == other_host
    versions = {address.version for address in addresses}
    return len(addresses) == 1 or (len(versions) == 1 and any(address.is_unspecified for address in addresses))


def parent_from(options: Mapping[str, Any], secret: str | None) -> ParentSettings | None:
    """The switch above that is asked for, None if there is none. Raises `SettingsError`."""
    if options["parent"] is None:
        if any(options[name] is not None for name in ("name", "parent_ca", "parent_secret_file")):
            raise SettingsError("--name, --parent-ca and --parent-secret-file say nothing without --parent")
        return None
    for name in ("web", "drain", "operator", *policy_options(options).values()):
        if options[name] not in (None, ()):
            raise SettingsError(f"--{name.replace('_', '-')} is for the root of the tree, which has the registry")
    if options["target"] == "tofino":
        raise SettingsError("--parent is for the software switch and bmv2: the Tofino program has no trees")
    secret_file = options["parent_secret_file"]
    if secret_file is not None and secret is not None:
        raise SettingsError(
            "--parent-secret-file and the variable INAGG_SECRET both say the secret of this switch: leave out one"
        )
    if secret_file is not None and options["secret_file"] is None:
        raise SettingsError(
            "--parent-secret-file needs --secret-file too, with what those who call this switch must know: a copy of "
            "the root's (the same file, where all share one secret)"
        )
    if options["secret_file"] is not None and secret is None and secret_file is None:
        raise SettingsError(
            "--parent needs the secret of this switch alone, too: in a file (--parent-secret-file), or in the variable "
            "INAGG_SECRET"
        )
    address = with_port(options["parent"], CONTROL_PORT)
    tls = options["parent_ca"] is not None
    shown = {"certificate": options["tls_cert"], "key": options["tls_key"]} if tls else {}
    access = Access(tls=tls, ca=options["parent_ca"], secret=secret, secret_file=secret_file, **shown)
    return ParentSettings(address, options["name"] or socket.gethostname(), access)


def policy_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The fields of `Policy` that have an option, and its name; the default is that of the field."""
    names = ((field.name, field.name.removesuffix("_s")) for field in fields(Policy))
    return {field: name for field, name in names if name in options}
