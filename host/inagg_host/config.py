"""The settings of a worker, from arguments or from the environment."""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, TypedDict, Unpack

from inagg_link.addresses import SettingsError, split_address
from inagg_wire.errors import AdmissionError
from inagg_wire.formats import WORKERS_MAX, JobFormat, admit, job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_MAX
from inagg_wire.names import NAME_CHARS_MAX, shortened
from inagg_wire.variables import misspelt

from .nickname import script_name

log = logging.getLogger("inagg")

POLICIES = ("raise", "fallback")
TIME_MAX_S = 1e9
"""The longest time that is waited; who asks for more, or for infinity, means this. Python's locks take little more, and
gRPC takes a deadline that is later for one that has passed."""
UNNAMED_JOB = "default"
"""The job of who gives it no name, in an interpreter that runs no script."""
_KINDS: dict[str, tuple[type, Callable[[Any], Any], str]] = {
    "int": (Integral, int, "an integer"),
    "float": (Real, float, "a number"),
    "str": (str, str, "text"),
}
"""A field's type to what is taken for it, what becomes of that (numpy has numbers of its own), and words for it."""

_TRUTHS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
"""Words for yes and no in a variable."""


class ConfigError(ValueError):
    """A worker was configured wrongly; the text says what to change."""


class JobOptions(TypedDict, total=False):
    """The fields of `Config` but ``rank`` and ``workers``, as keyword arguments: for type checkers and editors, which
    cannot see them otherwise. None: not given."""

    switch: str | None
    job: str | None
    format: str | None
    lanes: int | None
    window: int | None
    seed: int | None
    policy: str | None
    timeout_s: float | None
    join_timeout_s: float | None
    reconnect_s: float | None
    heartbeat_limit_s: float | None
    rejoin_limit_s: float | None
    host: str | None
    ca: str | None
    certificate: str | None
    key: str | None
    secret: str | None


class ConfigOptions(JobOptions, total=False):
    """All fields of `Config` as keyword arguments."""

    rank: int | None
    workers: int | None


@dataclass(frozen=True, slots=True)
class Config:
    """How a rank reaches its switch and what its job is. All ranks of a job need the same, but ``rank``, ``host`` and
    the key files.

    `from_environment` reads RANK, WORLD_SIZE, and the others from INAGG_ with their names in capitals, without the unit
    (`timeout_s`: INAGG_TIMEOUT); an empty variable is as one that is not set.
    """

    switch: str
    """host:port of the switch's control service; or several, with commas: where one is not there, the next is tried,
    such as that of another rack in the same tree of switches."""
    rank: int
    workers: int
    job: str = "default"
    """The job's name on the switch, of 1 to 64 characters. From the environment: if none is given, the script's
    (`train` of train.py), and this where there is no script. Two trainings at once need two names: also two of one
    script, which would else be taken for one."""
    format: str = "nat8"
    """nat8, nat8-reencode, nat4, nat4-reencode, nat4-nat8, tern, dith8, dith8-exact or fix32."""
    lanes: int | None = None
    """Elements per datagram; None: as many as the switch takes. It must fit the MTU on the whole way to the switch."""
    window: int | None = None
    """Blocks that may be outstanding on each shard of the switch; None: it chooses, by the size of datagrams."""
    seed: int | None = None
    """Seed of all rounding noise, 32 bits; None: the switch draws one."""
    policy: str = "raise"
    """Action when the switch or a rank is gone: "raise", or "fallback" to the inner group (PyTorch only)."""
    timeout_s: float = 300.0
    """How long an operation may take; a rank that is still computing counts as well."""
    join_timeout_s: float = 300.0
    """How long to wait for the other ranks to join, also when a new epoch begins."""
    reconnect_s: float = 30.0
    """How long to try to reach a switch that went away."""
    heartbeat_limit_s: float | None = None
    """Silence after which the switch gives a rank up; None: the switch's default."""
    rejoin_limit_s: float | None = None
    """How long the job waits for ranks that were lost to come back, before it ends; None: the switch's default."""
    host: str | None = None
    """Literal address to send datagrams from; None: that of the way to the switch's data."""
    ca: str | None = None
    """File of the authority that signed the switch's certificate; without it the channel is not encrypted."""
    certificate: str | None = None
    """File of this worker's certificate, where the switch demands one; with ``key``."""
    key: str | None = None
    secret: str | None = None
    """The secret that the switch was started with, if it was."""

    @property
    def who(self) -> str:
        """Words for this rank in the log."""
        return f"rank {self.rank} of job {self.job!r}"

    @property
    def switches(self) -> tuple[str, ...]:
        """The addresses in ``switch``, in order."""
        return tuple(address.strip() for address in self.switch.split(","))

    def __post_init__(self) -> None:
        for field in fields(self):
            kind, *optional = str(field.type).split(" | ")
            value, (wanted, convert, words) = getattr(self, field.name), _KINDS[kind]
            fits = isinstance(value, wanted) and not isinstance(value, bool)  # which is an integer to Python
            if not fits and not (optional and value is None):
                raise ConfigError(f"{named(field.name)} is {value!r}: give {words}")
            if fits:
                object.__setattr__(self, field.name, convert(value))
        for address in self.switches:
            why = "give a port from 1 on"
            try:
                sound = split_address(address)[1] > 0
            except SettingsError as error:
                sound, why = False, str(error)
            if not sound:
                raise ConfigError(
                    f"{named('switch')} is {address!r}: give host:port of its control service, as `inagg switch` "
                    f"prints it ({why})"
                )
        if not 1 <= self.workers <= WORKERS_MAX:
            raise ConfigError(f"{named('workers')} is {self.workers}: a job has 1 to {WORKERS_MAX}")
        if not 0 <= self.rank < self.workers:
            raise ConfigError(f"rank {self.rank} of {self.workers} workers: ranks go from 0 to {self.workers - 1}")
        if not self.job.isprintable():  # the switch says what else is no name; this could not be sent
            raise ConfigError(f"job {self.job!r} (INAGG_JOB): give letters, digits and any of ._:/-")
        if not 1 <= len(self.job) <= NAME_CHARS_MAX:
            raise ConfigError(
                f"job {self.job!r} (INAGG_JOB) has {len(self.job):,} characters: give a name of 1 to {NAME_CHARS_MAX}"
            )
        if self.policy not in POLICIES:
            raise ConfigError(f"{named('policy')} is {self.policy!r}: choose {' or '.join(POLICIES)}")
        for name in ("timeout_s", "join_timeout_s", "reconnect_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{named(name)} is {getattr(self, name)}: give seconds above 0")
            object.__setattr__(self, name, min(getattr(self, name), TIME_MAX_S))
        for name in ("heartbeat_limit_s", "rejoin_limit_s"):  # the switch says which of them it does not take
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ConfigError(f"{named(name)} is {getattr(self, name)}: give seconds, not below 0")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(f"{named('certificate')} and {named('key')} go together: give both or neither")
        if self.certificate is not None and self.ca is None:
            raise ConfigError(
                "a certificate and its key (INAGG_CERTIFICATE and INAGG_KEY) are of no use without TLS: set INAGG_CA "
                "to the file of the authority that signed the switch's certificate, or leave them out"
            )
        if self.seed is not None and not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"{named('seed')} is {self.seed}: give 32 bits")
        if self.window is not None and not 0 < self.window < 1 << 32:
            raise ConfigError(f"{named('window')} is {self.window}: give blocks, from 1 on")
        if self.host:
            literal_host(self.host)
        if self.secret and not all("!" <= character <= "~" for character in self.secret):
            raise ConfigError("the secret (INAGG_SECRET) must be visible ASCII characters, without spaces or line ends")
        fmt = format_of("format", self.format)
        try:
            admit(fmt, self.workers, fmt.min_lanes if self.lanes is None else self.lanes, UDP_PAYLOAD_BYTES_MAX)
        except AdmissionError as error:
            raise ConfigError(f"{error} ({VARIABLES['format']}, {VARIABLES['lanes']})") from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **options: Unpack[ConfigOptions]) -> Config:
        """A configuration from what is given (None: not given), else the environment, else defaults; of a job, that is
        the script's name (`script_name`).

        Raises `ConfigError` if switch, rank or number of workers are in neither, or a value cannot be read, or an
        option has the name of no field.
        """
        if environ is os.environ:
            _warn_of_misspelt()
        refuse_unknown(options, VARIABLES)
        given: Mapping[str, object] = options
        values: dict[str, Any] = {}
        for field in fields(cls):
            variable = VARIABLES[field.name]
            if given.get(field.name) is not None:
                values[field.name] = given[field.name]
            elif text := environ.get(variable):
                values[field.name] = read(variable, text, str(field.type))
        values.setdefault("job", shortened(script_name(UNNAMED_JOB), NAME_CHARS_MAX))
        for name in ("switch", "rank", "workers"):
            if name not in values:
                raise ConfigError(f"no {name}: pass it, or set {VARIABLES[name]}")
        return cls(**values)


def named(name: str) -> str:
    """A field of `Config` for an error, with its variable."""
    return f"{name} ({VARIABLES[name]})"


def format_of(name: str, text: str, variable: str | None = None) -> JobFormat:
    """The format called ``text``, which the option ``name`` says (``variable``: that of one that is not `Config`'s).
    Raises `ConfigError`."""
    try:
        return job_format(text)
    except AdmissionError as error:
        raise ConfigError(f"{name} ({variable or VARIABLES[name]}): {error}") from None


def literal_host(text: str) -> str:
    """``text``, with brackets or without, as a literal address that datagrams can come from. Raises `ConfigError`."""
    host = text.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"host {text!r} (INAGG_HOST): give a literal address of this machine, such as 10.0.0.2, without a port"
        ) from None
    if address.version == 6 and address.is_link_local:
        raise ConfigError(
            f"datagrams cannot come from {host}, which means something on one link alone: name an address that all "
            "know with INAGG_HOST, or the switch by such a one"
        )
    return host


def is_loopback(host: str) -> bool:
    """Whether what comes from the literal address ``host`` stays on this machine."""
    return ipaddress.ip_address(host).is_loopback


VARIABLES = {
    field.name: {"rank": "RANK", "workers": "WORLD_SIZE"}.get(
        field.name, f"INAGG_{field.name.removesuffix('_s').upper()}"
    )
    for field in fields(Config)
}
"""The environment variable of each field of `Config`. Torchrun sets the first two."""
assert next(field.default for field in fields(Config) if field.name == "job") == UNNAMED_JOB


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigError` if something ``given`` is the name of none of the ``known`` options. It says which was
    perhaps meant, or all that there are."""
    for name in sorted(set(given).difference(known)):
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}"
        raise ConfigError(f"no such option: {name}. {hint}")


@cache
def _warn_of_misspelt() -> None:
    """Once a process."""
    for sentence in misspelt(os.environ):
        log.warning(sentence)


def read(variable: str, text: str, kind: str) -> Any:
    """The value that the ``text`` of a variable stands for: an "int", a "float" or a "str". Raises `ConfigError`."""
    try:
        if kind.startswith("int"):
            return int(text, 0)
        return float(text) if kind.startswith("float") else text
    except ValueError:
        raise ConfigError(f"{variable}={text!r} is no number") from None


def flag(variable: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a ``variable`` that is one of yes or no says yes; one that is empty or not set says no. Raises
    `ConfigError`."""
    text = environ.get(variable) or "0"
    truth = _TRUTHS.get(text.strip().lower())
    if truth is None:
        raise ConfigError(f"{variable}={text!r}: give 1 or 0 (or true or false, yes or no, on or off)")
    return truth
