"""Options that several benchmarks share, and types of options with lists: `--size 1K,64M`, `--workers 2,4`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from inagg_wire.errors import AdmissionError
from inagg_wire.formats import CHILDREN_MAX, admit, job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from ..option_types import OptionType

UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes, from a number with an optional K, M or G (powers of 1024). Raises ValueError."""
    text = text.strip().lower().removesuffix("b").removesuffix("i")
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1:] in UNITS else int(text)


def size_text(size: float) -> str:
    """Bytes for people: 64 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


class NumberList(OptionType):
    """Numbers with commas between them, such as ``example``. ``parse``: reads one, or raises ValueError; ``wrong``:
    what is wrong with one, nothing if all is well."""

    def __init__(
        self, name: str, example: str, parse: Callable[[str], int] = int, wrong: Callable[[int], str] = lambda _: ""
    ) -> None:
        self.name, self._example, self._parse, self._wrong = name, example, parse, wrong

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            numbers = [self._parse(part) for part in value.split(",")]
        except (ValueError, OverflowError):  # the latter: infK
            self.fail(f"{value!r}: give numbers such as {self._example}", param, ctx)
        if wrong := next(filter(None, map(self._wrong, numbers)), None):
            self.fail(f"{value}: {wrong}", param, ctx)
        return numbers


SIZES = NumberList("sizes", "1K,64M", parse_size, lambda size: "4 bytes are the least: one float32" if size < 4 else "")
LANES = NumberList("lanes", "32,256")


def counts(name: str, most: int) -> NumberList:
    """Numbers of workers or shards, such as ``2,4``, that one switch can have."""
    told = f"one switch has 1 to {most} {name}"
    return NumberList(name, "2,4", wrong=lambda count: "" if 1 <= count <= most else told)


def option_word(name: str) -> str:
    """A name as it is typed, without quotes: `gloo PowerSGD 4` is gloo-powersgd-4."""
    return "-".join(part for part in name.lower().replace("+", " ").replace("-", " ").split())


class NameChoice(OptionType):
    """One of ``names``, typed with hyphens (see `option_word`), or as it is shown in tables."""

    name = "name"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {option_word(name): name for name in names}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if (name := self._names.get(option_word(value))) is None:
            self.fail(f"there is no {value!r}: give one of {', '.join(self._names)}", param, ctx)
        return name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self._names if word.startswith(incomplete)]


workers_option = click.option(
    "--workers", default="4", show_default=True, type=counts("workers", CHILDREN_MAX), help="How many; a list."
)


def check_lanes(names: Sequence[str], workers: Sequence[int], lanes_list: Sequence[int]) -> None:
    """Raises `click.UsageError` unless frames of 1500 bytes take so many lanes, of each format, of so many workers."""
    for name, n, lanes in itertools.product(names, workers, lanes_list):
        try:
            admit(job_format(name), n, lanes, UDP_PAYLOAD_BYTES_1500)
        except AdmissionError as error:
            raise click.UsageError(f"--lanes: {error}") from None
