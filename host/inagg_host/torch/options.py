"""Options of the PyTorch adapters: arguments, `configure`, environment, in this order."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Unpack

from torch._C._distributed_c10d import Backend

from inagg_host.compress.base import is_whole
from inagg_host.config import VARIABLES, Config, ConfigError, JobOptions, flag, format_of, read, refuse_unknown
from inagg_host.nickname import script_name

MIN_BYTES = "INAGG_MIN_BYTES"

DEFAULT_MIN_BYTES = 16384
"""Smaller tensors go to the inner group. They are norms, losses and counts, which a user wants exact. And of so few
bytes there is nothing to save: on loopback, 64 KiB take as long as 1 KiB, with Gloo as with the switch."""

DEFAULT_FORMAT = "nat8"
"""Format of what sums gradients alone."""

REDUCE_SCATTER_FORMAT = "INAGG_REDUCE_SCATTER_FORMAT"

BLOCKING_WAIT = "INAGG_BLOCKING_WAIT"
"""If 1, whoever waits for the sums of CUDA tensors waits on the host."""

REJOIN_LIMIT_S = 10.0
"""Unless it is said otherwise. A process on a machine that is gone cannot come back into its process group, and whoever
starts it again (torchrun on another node) waits for the error of the others. For one whose network has failed this is
long."""

SCRIPT_CHARS_MAX = 24
"""Longest part of a script's name, which a nickname follows."""

_configured: dict[str, Any] = {}


class GroupOptions(JobOptions, total=False):
    """The options of a process group's job, which `Options` explains, as keyword arguments. None: not given."""

    min_bytes: int | None
    local_size: int | str | None
    reduce_scatter_format: str | None


class Options(Backend.Options):
    """Options of one process group: `init_process_group("inagg", pg_options=Options(format="tern"))`.

    Takes the fields of `inagg_host.config.Config` but ``rank`` and ``workers``, which are the group's, and

    - ``min_bytes``: smaller tensors go to the inner group (environment: INAGG_MIN_BYTES);
    - ``local_size``: how many ranks each host has, one after the other, that sum inside of the host first, such as its
      GPUs; "auto": as many as torchrun started there (INAGG_LOCAL_SIZE; default 1);
    - ``reduce_scatter_format``: of reduce-scatters, with which FSDP2 sums gradients, if it is to be another than
      ``format`` (INAGG_REDUCE_SCATTER_FORMAT). Process groups alone have it.
    """

    def __init__(self, **options: Unpack[GroupOptions]) -> None:
        super().__init__("inagg")
        self.options: dict[str, Any] = {**options}


def configure(**options: Unpack[GroupOptions]) -> None:
    """Set the defaults of this process for all groups and hooks that begin later: the same names as `Options`.

    Replaces what an earlier call set.
    """
    _configured.clear()
    _configured.update(options)


def option(name: str, given: dict[str, Any]) -> Any:
    """The value of option ``name``: ``given`` for a group, to `configure` or in the environment, where empty is unset;
    None if it has none."""
    for options in (given, _configured):
        if options.get(name) is not None:
            return options[name]
    return os.environ.get(VARIABLES[name]) or None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that one group needs to know."""

    min_bytes: int
    """Tensors of fewer bytes go to the inner group."""
    local_size: int
    """Ranks of each host that sum inside of it first."""
    summary: bool
    """Print counters to stderr when the group ends. Environment: INAGG_SUMMARY."""
    config: Config
    """Configuration of the job: its ranks are hosts; its name is the beginning of the job's (INAGG_JOB; the script's if
    not given)."""
    reduce_scatter_format: str
    """Format of reduce-scatters."""
    timeout_s: float
    """Seconds that the option of that name says; infinite if it was not given."""

    @property
    def common(self) -> dict[str, Any]:
        """Settings that must be the same on all ranks, by name; the first that is not is what the error tells."""
        job = {name: getattr(self.config, name) for name in ("format", "lanes", "window", "seed", "policy")}
        return job | {name: getattr(self, name) for name in ("min_bytes", "local_size", "reduce_scatter_format")}


def resolve_options(
    given: dict[str, Any], rank: int, workers: int, timeout: timedelta, default_format: str = DEFAULT_FORMAT
) -> Settings:
    """Put together what was given for a group, to `configure` and in the environment.

    ``timeout`` is the group's: no wait is longer. It is also how long an operation may take, unless a shorter
    ``timeout_s`` or INAGG_TIMEOUT says otherwise. Raises `ConfigError`.
    """
    options = {**_configured, **{name: value for name, value in given.items() if value is not None}}
    check_names(options)
    min_bytes = options.pop("min_bytes", None)
    if min_bytes is None:
        min_bytes = _int(MIN_BYTES, DEFAULT_MIN_BYTES)
    if not is_whole(min_bytes) or min_bytes < 0:
        raise ConfigError(f"min_bytes ({MIN_BYTES}) is {min_bytes!r}: give a number of bytes, 0 for all tensors")
    if option("format", given) is None:
        options["format"] = default_format
    if option("rejoin_limit_s", given) is None:
        options["rejoin_limit_s"] = REJOIN_LIMIT_S
    scattered = options.pop("reduce_scatter_format", None) or os.environ.get(REDUCE_SCATTER_FORMAT) or None
    local_size = _local_size(options.pop("local_size", None), workers)
    if not option("job", options):
        options["job"] = script_name("torch")[:SCRIPT_CHARS_MAX]
    host, hosts = rank // local_size, workers // local_size
    config = Config.from_environment(**{**options, "rank": host, "workers": hosts})
    limit_s = timeout.total_seconds()
    asked_s = config.timeout_s if option("timeout_s", options) is not None else math.inf
    config = replace(
        config,
        timeout_s=min(asked_s, limit_s),
        join_timeout_s=min(config.join_timeout_s, limit_s),
        reconnect_s=min(config.reconnect_s, limit_s),
    )
    if not isinstance(scattered, str | None):
        raise ConfigError(
            f"reduce_scatter_format ({REDUCE_SCATTER_FORMAT}) is {scattered!r}: give the name of a format"
        )
    if scattered is not None:
        scattered = format_of("reduce_scatter_format", scattered, REDUCE_SCATTER_FORMAT).name
    flag(BLOCKING_WAIT)  # it counts later, for each sum: an error is to come here, and on all ranks
    return Settings(int(min_bytes), local_size, flag("INAGG_SUMMARY"), config, scattered or config.format, asked_s)


def check_names(options: Collection[str], *others: str) -> None:
    """Raise `ConfigError` if one of ``options`` is the name of none of a group; whoever gave them can give ``others``,
    too."""
    for mine in ("rank", "workers"):
        if mine in options:
            raise ConfigError(f"{mine} is the process group's and cannot be an option")
    refuse_unknown(options, (*others, *GroupOptions.__annotations__))


def with_local_size(options: dict[str, Any], ranks: Sequence[int]) -> dict[str, Any]:
    """``options`` of a group of some ``ranks`` of the world, with as many of these as follow one another on each host.

    What `configure` and the environment say of hosts is of the world: a group may have one rank of each host, as that
    of a device mesh which replicates. Unless ``options`` say it of the group.
    """
    try:
        size = None if options.get("local_size") is not None else _ranks_of_a_host(_configured.get("local_size"))
    except ConfigError:  # from `resolve_options` it is, which tells all ranks
        return options
    if size is None:
        return options
    runs = [len(list(run)) for _, run in itertools.groupby(rank // size for rank in ranks)]
    return {**options, "local_size": math.gcd(*runs)}


def _local_size(given: Any, workers: int) -> int:
    size = _ranks_of_a_host(given)
    if size is not None and workers % size:
        raise _no_local_size(size, f", which divides {workers},")
    return size or 1


def _ranks_of_a_host(given: Any) -> int | None:
    """How many ranks each host has, by what is ``given`` or by the environment; None if neither says it. Raises
    `ConfigError`."""
    text = os.environ.get("INAGG_LOCAL_SIZE", "") if given is None else given
    if text == "auto":
        text = os.environ.get("LOCAL_WORLD_SIZE")
        if not text:
            raise ConfigError('local_size is "auto", but torchrun has set no LOCAL_WORLD_SIZE: give a number')
    try:
        size = None if text == "" else int(text) if isinstance(text, str) or is_whole(text) else 0
    except ValueError:
        size = 0
    if size is not None and size < 1:
        raise _no_local_size(text)
    return size


def _no_local_size(given: Any, divides: str = "") -> ConfigError:
    return ConfigError(
        f"local_size (INAGG_LOCAL_SIZE) is {given!r}: give how many ranks each host has{divides} or 'auto'"
    )


def _int(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    return int(read(variable, text, "int")) if text else default
