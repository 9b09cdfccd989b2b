"""Progress of long work, on standard error: bars on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from inagg_switch.cli.words import age_text
from inagg_switch.text import count_text

SAY_EVERY_S = 5.0
"""Between two plain lines about one task."""
WIDE = 80
"""Columns of a terminal that has room for bars."""


Doing = Callable[[str], None]
"""Told before each measurement what it is."""


@contextmanager
def said() -> Iterator[Doing]:
    """A function that shows what is being done now: a line that changes on a terminal; elsewhere plain lines, the first
    at once and then one now and then."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
    else:
        last_s = float("-inf")

        def say(text: str) -> None:
            nonlocal last_s
            if (now_s := time.monotonic()) - last_s >= SAY_EVERY_S:
                last_s = now_s
                click.echo(text, err=True)

        yield say


class Task:
    """Something with a number of steps, or with none that is known: each is told when it is done (`step`), or when it
    begins (`begin`)."""

    def __init__(self, shown: Steps, name: str, total: int | None) -> None:
        self._shown, self._name, self._total, self._done, self._begun = shown, name, total, 0, 0
        self._start_s = self._said_s = self._first_s = time.monotonic()
        self._bar: TaskID | None = None
        if shown.bars is not None:
            self._bar = shown.bars.add_task(name, total=total)
        else:
            shown.say(f"{name} ..." if total is None else f"{name}: {count_text(total, 'step')}")

    def step(self, more: str = "", by: int = 1) -> None:
        """``by`` more steps are done; ``more``: what there is to say beside."""
        if not self._done:
            self._first_s = time.monotonic()  # what was before it, such as starting processes, comes once
        self._done += by
        self._tell(self._done, self._done - 1, more)

    def begin(self, doing: str) -> None:
        """The next step begins, and those before it are done; ``doing``: what it is."""
        if not self._begun:
            self._first_s = time.monotonic()
            self._said_s = float("-inf")  # what comes first may take long, such as starting processes
        self._done, self._begun = self._begun, self._begun + 1
        self._tell(self._begun, self._done, doing)

    def _tell(self, number: int, timed: int, more: str) -> None:
        """Tell that step ``number`` is done, or has begun; so many have been ``timed``."""
        if self._shown.bars is not None and self._bar is not None:
            self._shown.bars.update(self._bar, completed=self._done, description=f"{self._name}  {more}".rstrip())
        elif (now_s := time.monotonic()) - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._shown.say(f"{self._name}: {self._how_far(number, timed, now_s)}{f', {more}' if more else ''}")

    def _how_far(self, number: int, timed: int, now_s: float) -> str:
        if self._total is None:
            return f"after {age_text(now_s - self._start_s)}"
        left = ""
        if timed:
            left_s = (now_s - self._first_s) / timed * (self._total - self._done)
            left = f", about {age_text(left_s)} left"
        return f"step {number} of {self._total}{left}"

    def reach(self, share: float, doing: str) -> None:
        """So much of it is done, 0 to 1; ``doing``: what is being done."""
        if self._shown.bars is not None and self._bar is not None:
            name = f"{self._name}: {doing}"
            self._shown.bars.update(self._bar, total=100, completed=round(100 * share), description=name)
        elif (now_s := time.monotonic()) - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._shown.say(f"{self._name}: {share:.0%} after {age_text(now_s - self._start_s)}, {doing}")

    def end(self, *others: Task) -> None:
        """It is done, and so are ``others``, which have taken turns with it: no time is that of one alone."""
        for task in (self, *others):
            if self._shown.bars is not None and task._bar is not None:
                total = task._total or 1
                self._shown.bars.update(task._bar, total=total, completed=total, description=task._name)
        if self._shown.bars is None:
            names = " and ".join(task._name for task in (self, *others))
            took = age_text(time.monotonic() - self._start_s)
            self._shown.say(f"{names}: done in {took}{', in turns' if others else ''}")


class Steps:
    """A context in which tasks are shown. ``as_json``: what is printed meanwhile is for programs; where it goes to the
    terminal, too, there are lines and no bars, which would break it into lines of the terminal's width."""

    def __init__(self, as_json: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False)
        columns: list[ProgressColumn] = [TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()]
        if self.console.width >= WIDE:  # else the words, which say most, would have no room
            columns[1:1] = [BarColumn(20)]
            columns[3:3] = [TimeElapsedColumn()]
        # What commands print goes above the bars; but where it does not go to the terminal it is nobody's to take.
        above = sys.stdout.isatty()
        bars = self.console.is_terminal and not (as_json and above)
        self.bars = Progress(*columns, console=self.console, redirect_stdout=above) if bars else None

    def task(self, name: str, total: int | None = None) -> Task:
        """Begin one."""
        return Task(self, name, total)

    def say(self, text: str) -> None:
        """A line for people, above the bars."""
        if self.bars is not None:
            self.console.print(text, soft_wrap=True, markup=False)
        else:
            click.echo(text, err=True)

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bars is not None:
            self.bars.stop()


@contextmanager
def measuring(total: int, as_json: bool = False) -> Iterator[Doing]:
    """A `Doing` for ``total`` measurements, which shows how far they are; ``as_json`` as of `Steps`."""
    with Steps(as_json) as steps:
        task = steps.task("measuring", total)
        yield task.begin
        task.end()
