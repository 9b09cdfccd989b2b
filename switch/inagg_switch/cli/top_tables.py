"""The tables of `inagg top`, for 80 columns, or fewer with less in them, and as many lines as there are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from ..p4 import TARGETS
from ..service.rates import JobRates, Rates, ShardRates
from ..text import count_text
from .terminal_tables import NAME_COLUMNS, NARROW, PIPED_COLUMNS, columns_that_fit, table
from .words import age_text, member_text, rate_text, state_text

REASONS_SHOWN: Final = 4
"""Reasons and kinds of faults that are shown where lines are few: so many take two lines of 80 columns."""
COLUMNS: Final = 80
"""Width of a terminal that all fits; in a narrower one sentences take more lines."""
WIDTHS: Final = {"JOB": NAME_COLUMNS, "TRUNK OF": NAME_COLUMNS}
OF_SHARDS: Final = ("SHARD", ">Gbit/s IN", ">OUT", ">PKT/s IN", ">OUT", ">CPU", ">SLOTS LEASED", ">KERNEL DROPS")
OF_JOBS: Final = ("JOB", "STATE", ">ELEM/s", ">RESULT/s", ">WAITING", ">DUP/s", ">RESENT/s", ">STALE/s")
OF_TRUNKS: Final = ("JOB", "TRUNK OF", ">PARTIAL/s", ">AGAIN/s", ">PARTIALS", ">AGAIN")
OF_RANKS: Final = ("JOB", ">RANK", "STATE", ">SENT/s", ">Gbit/s", ">DUP", ">RESENT", ">STALE", ">HEARD")
"""Titles of the tables, the most important first: a narrow terminal has no room for the last ones."""


def tables(look: Rates, address: str, lines: int | None = None, columns: int | None = None) -> RenderableType:
    """The whole picture. ``lines``: how many it may have; rows that find no room are counted. ``columns``: how wide it
    may be; tables leave out what they have at the right, and that is told."""
    now = look.now
    width = PIPED_COLUMNS if columns is None else columns
    below = {shard.switch for shard in now.shards if shard.switch}
    own = sum(not shard.switch for shard in now.shards)
    lost = list(_lost(look, None if lines is None else REASONS_SHOWN))
    title = (
        f"  {now.driver}, up {age_text(now.uptime_s)}, {count_text(own, 'shard')}, "
        + (f"{len(below)} below it, " if below else "")
        + count_text(len(now.jobs), "job")
        + (", no new ones" if now.draining else "")
    )
    shards = [
        _shard_row(shard.now.switch or str(index), shard, now.driver in TARGETS)
        for index, shard in enumerate(look.shards)
    ]
    jobs = [_job_row(job) for job in look.jobs]
    workers = [row for job in look.jobs for row in _worker_rows(job)]
    trunks = [row for job in look.jobs for row in _trunk_rows(job)]
    jobs_room, trunks_room, workers_room = len(jobs), len(trunks), len(workers)
    if lines is not None:
        # A line for the title; then four parts of a blank line, titles and rows (what was lost has two lines for each
        # of its rows and no title), two of which have a line for what they leave out; a fifth one where trunks are.
        # Where sentences do not fit 80 columns they have more.
        told = _wrapped(f"inagg switch {address}{title}", width) + sum(max(2, _wrapped(str(t), width)) for t in lost)
        part = 2 + (1 if width >= COLUMNS else 2)
        room = lines - (2 + len(look.shards) + 1 + told + part * (3 if trunks else 2))
        workers, trunks = _named_once(workers), _named_once(trunks)
        if sum(map(_height, (*jobs, *trunks, *workers))) > room:
            jobs_room = _fitting(jobs, room // (3 if trunks else 2))
            trunks_room = _fitting(trunks, room // 3) if trunks else 0
            taken = sum(map(_height, (*jobs[:jobs_room], *trunks[:trunks_room])))
            workers_room = _fitting(workers, room - taken)
    there = ((OF_SHARDS, shards), (OF_JOBS, jobs), (OF_TRUNKS, trunks), (OF_RANKS, workers))
    fits = [columns_that_fit(titles, rows, width, WIDTHS) for titles, rows in there]
    narrow = any(rows and fit < len(titles) for (titles, rows), fit in zip(there, fits, strict=True))
    of_shards, of_jobs, of_trunks, of_ranks = fits
    parts: list[RenderableType] = [
        Text.assemble((f"inagg switch {address}", "bold"), title),
        Text(NARROW if narrow else "", style="dim"),
        _cut(OF_SHARDS, shards, of_shards),
    ]
    if lost:
        parts += [Text(), *lost]
    if look.jobs:
        parts += [Text(), _cut(OF_JOBS, jobs[:jobs_room], of_jobs), *_more(len(jobs), jobs_room, "job")]
        if trunks:
            parts += [Text(), _cut(OF_TRUNKS, trunks[:trunks_room], of_trunks)]
            parts += _more(len(trunks), trunks_room, "trunk")
        parts += [Text(), _cut(OF_RANKS, workers[:workers_room], of_ranks)]
        parts += _more(len(workers), workers_room, "rank")
    return Group(*parts)


def _cut(titles: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> RenderableType:
    """A table of the first ``count`` columns. A long name of a job takes more lines, for people to copy and type it."""
    return table(titles[:count], [row[:count] for row in rows], fold=["JOB"], widths=WIDTHS)


def _wrapped(text: str, columns: int) -> int:
    """Lines that a sentence takes in so many columns."""
    return len(textwrap.wrap(text, columns))


def _height(row: Sequence[str]) -> int:
    """Lines that a row takes on a terminal."""
    return max(1, -(-len(row[0]) // NAME_COLUMNS))


def _fitting(rows: Sequence[Sequence[str]], lines: int) -> int:
    """How many of ``rows`` have room in so many lines: one at least."""
    count = 0
    for row in rows:
        lines -= _height(row)
        if lines < 0:
            break
        count += 1
    return max(1, count)


def _named_once(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows, with the name of a job in the first of its rows alone."""
    return [("", *row[1:]) if at and rows[at - 1][0] == row[0] else row for at, row in enumerate(rows)]


def _more(count: int, room: int, noun: str) -> list[RenderableType]:
    """Says what was left out."""
    if count <= room:
        return []
    text = f"... and {count_text(count - room, noun)} more: name one job, or use --once or --json"
    return [Text(text, style="dim")]


def _shard_row(name: str, shard: ShardRates, elsewhere: bool) -> tuple[str, ...]:
    """``elsewhere``: it is no process of this machine, so what its kernel does is not known."""
    now = shard.now
    share = now.slots_leased / now.slots if now.slots else 0.0
    return (
        name,
        _gbit_text(shard.bits_in),
        _gbit_text(shard.bits_out),
        rate_text(shard.datagrams_in),
        rate_text(shard.datagrams_out),
        "-" if elsewhere else f"{100 * shard.cpu:.0f}%",
        f"{now.slots_leased}/{now.slots} {100 * share:.0f}%",
        "-" if elsewhere else f"{now.kernel_drops}",
    )


def _gbit_text(bits: float) -> str:
    """Gbit, with more places where there is little: a bmv2 moves megabits."""
    return f"{bits / 1e9:.2f}" if bits >= 1e8 or not bits else f"{bits / 1e9:.4f}"


def _lost(look: Rates, most: int | None) -> Iterator[RenderableType]:
    """Rows of what did not go as it should: by reason, in all and per second; at most ``most`` reasons."""
    if look.now.silent:
        yield Text(f"Does not answer: {'; '.join(look.now.silent)}", style="red")
    drops = list(look.drops)
    if drops:
        yield _counts("Dropped:", drops, most)
    refused = sum(shard.now.send_refused for shard in look.shards)
    if refused:
        yield Text(f"Not sent, as the kernel did not take them: {refused}")
    quarantined = look.now.shards[0].slots_quarantined if look.now.shards else 0
    if quarantined:
        yield Text(f"In quarantine, as a shard has not dropped an ended job: {quarantined} slots", style="red")
    faults = [fault for fault in look.faults if fault[1]]
    if faults:
        yield _counts("Harmed on purpose:", faults, most, "yellow")


def _counts(title: str, counts: list[tuple[str, int, float]], most: int | None, style: str = "") -> Text:
    words = [f"{name} {count} ({rate_text(rate)}/s)" for name, count, rate in counts[:most]]
    more = len(counts) - len(words)
    return Text(f"{title} {', '.join(words)}{f', and {more} more' if more else ''}", style=style)


def _job_row(job: JobRates) -> tuple[str, ...]:
    now = job.now
    return (
        now.job.spec.name,
        state_text(now.job.state),
        rate_text(job.elements),
        rate_text(job.results),
        str(now.slots_waiting),
        rate_text(job.duplicates),
        rate_text(job.resends),
        rate_text(job.stale),
    )


def _trunk_rows(job: JobRates) -> Iterator[tuple[str, ...]]:
    for trunk in job.trunks:
        yield (
            job.now.job.spec.name,
            trunk.now.switch,
            rate_text(trunk.partials),
            rate_text(trunk.partials_again),
            _count(trunk.now.partials),
            _count(trunk.now.partials_again),
        )


def _worker_rows(job: JobRates) -> Iterator[tuple[str, ...]]:
    for worker in job.workers:
        yield (
            job.now.job.spec.name,
            str(worker.now.rank),
            member_text(worker.member.state),
            rate_text(worker.contributions),
            _gbit_text(worker.bits_in),
            _count(worker.now.duplicates),
            _count(worker.now.resends),
            _count(worker.now.stale),
            age_text(worker.member.silent_s) if worker.member.state else "",
        )


def _count(count: int) -> str:
    """In full as long as it fits its column."""
    return str(count) if count < 100_000 else rate_text(count)
