"""What `jobs`, `top` and `why` print fits a terminal of 80 columns, loses nothing in a pipe, and says what there is."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable

import pytest
from rich.console import Console, RenderableType
from tests.switch.cli.messages import ACTIVE, FAILED, JOINING, MISSING, WAITING, job, job_stats, shard_stats, stats

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.cli import terminal_tables as tables_module
from inagg_switch.cli.jobs_command import print_jobs
from inagg_switch.cli.top import line
from inagg_switch.cli.top_tables import tables
from inagg_switch.cli.why import EXITS, print_why
from inagg_switch.service.rates import Rates, rates
from inagg_switch.service.verdict import silent_ranks, verdict

LONG = "experiment/of-last-tuesday/with-a-name-of-64-characters-in-all-x"
assert len(LONG) == 64


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal of 80 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    return Console(file=io.StringIO(), width=80, height=24, highlight=False, emoji=False)


@pytest.fixture
def pipe() -> Console:
    """No terminal."""
    return Console(file=io.StringIO(), width=tables_module.PIPED_COLUMNS, highlight=False, emoji=False)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_of(console: Console) -> list[str]:
    """What was printed; no line is wider than the console."""
    found = said(console).splitlines()
    assert max(map(len, found)) <= console.width
    return found


def printed(console: Console, picture: RenderableType) -> list[str]:
    console.print(picture)
    return lines_of(console)


def some_jobs() -> pb.ListResponse:
    return pb.ListResponse(
        jobs=[
            job("train", (ACTIVE, ACTIVE, FAILED), ends_in_s=42.0),
            job(LONG, (WAITING, MISSING), state=JOINING),
        ],
        ended=[
            pb.EndedJob(name=f"old-{i}", job=i, epoch=2, ago_s=60, cause=pb.CAUSE_ALL_LEFT, text=f"all left old-{i}")
            for i in range(7)
        ],
    )


def a_look(jobs: int = 2) -> Rates:
    """Much of everything: the widest numbers that are likely."""
    busy = {"datagrams_in": 4 * 10**6, "bytes_in": 5 * 10**9, "datagrams_out": 4 * 10**6, "bytes_out": 5 * 10**9}
    drops = {"duplicate": 123_456, "unknown_source": 7, "wrong_token": 99}
    now = stats(
        100_001,
        [job_stats(300_000, (300_000,) * 4, "train" if i else LONG, slots_waiting=1024) for i in range(jobs)],
        [shard_stats(**busy, cpu_s=1.0, drops=drops, kernel_drops=12_345, faults={"dropped": 5, "corrupted": 0})] * 2,
    )
    return rates(stats(100_000, shards=[shard_stats()] * 2), now)


def test_jobs_fit_a_terminal_and_names_can_be_copied(terminal: Console) -> None:
    print_jobs(terminal, some_jobs(), "127.0.0.1:47100")
    text = "\n".join(lines_of(terminal))
    assert "ranks 0-1 active, rank 2 failed" in text
    assert "rank 0 waiting, rank 1 missing" in text
    assert "train ends in 42.0 s unless its missing ranks come back." in text
    # the long name, over several lines of its column
    column = "".join(line[:17].strip() for line in text.split("JOB", 2)[1].splitlines() if line[:17].strip())
    assert LONG in column


def test_jobs_on_a_narrow_terminal_keep_their_names(terminal: Console) -> None:
    terminal.width = 40
    print_jobs(terminal, some_jobs(), "127.0.0.1:47100")
    first, *_ = found = lines_of(terminal)
    assert first.split() == ["JOB", "STATE", "WORKERS"]
    assert "Too narrow for all columns (see --json)" in found
    assert "…" not in "".join(found)


def test_jobs_in_a_pipe_are_one_line_each(pipe: Console) -> None:
    print_jobs(pipe, some_jobs(), "127.0.0.1:47100")
    (found,) = [line for line in lines_of(pipe) if LONG in line]
    assert found.split()[1:] == [
        "joining",
        "2",
        "nat8",
        "1448",
        "128",
        "1",
        "1m",
        "05s",
        "rank",
        "0",
        "waiting,",
        "rank",
        "1",
        "missing",
    ]


def test_ended_jobs_that_are_not_shown_are_counted(pipe: Console) -> None:
    print_jobs(pipe, some_jobs(), "127.0.0.1:47100")
    assert "... and 2 before these (--json lists them)" in said(pipe)


def test_a_switch_without_jobs_says_so(pipe: Console) -> None:
    print_jobs(pipe, pb.ListResponse(), "10.0.0.1:5")
    assert said(pipe) == "No jobs on the switch at 10.0.0.1:5.\n"


def test_a_switch_that_takes_no_new_jobs_says_so(pipe: Console, terminal: Console) -> None:
    print_jobs(pipe, pb.ListResponse(draining=True), "10.0.0.1:5")
    assert "takes no new jobs" in said(pipe)
    now = stats(2, [job_stats()], [shard_stats()])
    now.draining = True
    found = printed(terminal, tables(rates(stats(0), now), "127.0.0.1:47100"))
    assert found[0].endswith("1 job, no new ones")


def test_top_fits_a_terminal(terminal: Console) -> None:
    found = printed(terminal, tables(a_look(), "127.0.0.1:47100", 40))
    assert "…" not in "\n".join(found)
    assert "".join(line[:17].strip() for line in found).count(LONG) == 2, "of the job, and of its first rank"
    text = "\n".join(found)
    for word in ("40.00", "4.00M", "100%", "256/4096 6%", "12345", "434M", "300k"):
        assert word in text
    flat = " ".join(text.split())
    assert "Dropped: duplicate 246912 (247k/s), wrong_token 198 (198/s), unknown_source 14 (14.0/s)" in flat
    assert "Harmed on purpose: dropped 10 (10.0/s)" in flat


@pytest.mark.parametrize("width", [40, 60])
def test_top_on_a_narrow_terminal_keeps_jobs_and_what_matters_most_whole(terminal: Console, width: int) -> None:
    terminal.width = width
    found = printed(terminal, tables(a_look(), "127.0.0.1:47100", 60, width))
    text = "\n".join(found)
    assert "…" not in text
    heads = [line.split() for line in found if line.startswith("JOB")]
    assert [head[:3] for head in heads] == [["JOB", "STATE", "ELEM/s"], ["JOB", "RANK", "STATE"]]
    assert "".join(line[:17].strip() for line in found).count(LONG) == 2, "of the job, and of its first rank"
    assert "STALE" not in text
    assert "Too narrow for all columns (see --json)" in text


@pytest.mark.parametrize("columns", [40, 80])
def test_top_says_that_columns_are_left_out_where_they_are(terminal: Console, columns: int) -> None:
    terminal.width = columns
    text = "\n".join(printed(terminal, tables(a_look(), "127.0.0.1:47100", 40, columns)))
    assert ("Too narrow" in text) == (columns < 80)


@pytest.mark.parametrize("height", [24, 30])
def test_a_narrow_picture_is_no_higher_than_the_terminal(terminal: Console, height: int) -> None:
    terminal.width = 40
    look = rates(None, stats(5, [job_stats(name=f"job-{i}") for i in range(20)], [shard_stats()]))
    found = printed(terminal, tables(look, "127.0.0.1:47100", height, 40))
    assert len(found) <= height
    assert " ".join(" ".join(found).split()).count("more: name one job") == 2


@pytest.mark.parametrize("height", [24, 30, 80])
def test_top_is_no_higher_than_the_terminal_and_counts_what_it_leaves_out(terminal: Console, height: int) -> None:
    found = printed(terminal, tables(a_look(jobs=10), "127.0.0.1:47100", height))
    assert len(found) <= height
    assert any("more: name one job" in line for line in found) == (height < 80)


def a_tree(trunks: int) -> Rates:
    """A job behind so many trunks."""
    each = [pb.TrunkStats(switch=f"rack{i}", partials=123_456_789, partials_again=42) for i in range(trunks)]
    return rates(stats(0, [job_stats()]), stats(2, [job_stats(trunks=each)], [shard_stats()]))


def test_top_shows_what_a_job_sends_over_each_trunk(terminal: Console) -> None:
    found = printed(terminal, tables(a_tree(2), "127.0.0.1:47100"))
    (row,) = [line.split() for line in found if "rack1" in line]
    assert row == ["train", "rack1", "61.7M", "21.0", "123M", "42"]


@pytest.mark.parametrize("height", [24, 30, 80])
def test_trunks_are_no_higher_than_the_terminal_and_what_is_left_out_is_counted(terminal: Console, height: int) -> None:
    found = printed(terminal, tables(a_tree(32), "127.0.0.1:47100", height))
    assert len(found) <= height
    assert any("more: name one job" in line and "trunk" in line for line in found) == (height < 80)


def test_where_there_is_no_tree_top_has_no_trunks(terminal: Console) -> None:
    assert "TRUNK" not in "\n".join(printed(terminal, tables(a_look(), "127.0.0.1:47100")))


def test_top_in_a_pipe_leaves_nothing_out(pipe: Console) -> None:
    found = printed(pipe, tables(a_look(jobs=10), "127.0.0.1:47100"))
    assert sum("train" in line for line in found) == 9 * 5
    assert LONG in "\n".join(found)


def test_a_line_has_all_totals() -> None:
    found = dict(word.split("=") for word in line(a_look()).split())
    assert found["bits_in_per_s"] == "80000000000"
    assert found["cpu_percent"] == "200"
    assert found["slots_waiting"] == "2048"


def test_a_line_has_plain_numbers_and_rates_are_called_so() -> None:
    found = dict(word.split("=") for word in line(a_look()).split())
    del found["time"]
    assert all(re.fullmatch(r"\d+(\.\d+)?", value) for value in found.values())
    assert 868_500_000 <= float(found["elements_per_s"]) < 869_500_000
    assert 24_650 <= float(found["kernel_drops_per_s"]) < 24_750
    assert {name for name in found if not name.endswith("_per_s")} == {
        "jobs", "cpu_percent", "slots_leased", "slots_waiting",
    }  # fmt: skip


def why(**fields: object) -> pb.WhyResponse:
    """An answer: a job that runs, unless said otherwise."""
    return pb.WhyResponse(**{"job": job(), **fields})  # type: ignore[arg-type]


def waiting(seconds: float) -> dict[str, object]:
    """Two slots wait for rank 1."""
    return {
        "slots_waiting": 2,
        "slots": [pb.SlotWait(slot=slot, generation=3, missing=[1], waiting_s=seconds) for slot in (7, 8)],
        "ranks": [pb.RankWait(rank=1, slots=2, longest_s=seconds, silent_s=0.3, contributions=9)],
        "text": ["2 slots miss rank 1."],
    }


ENDED = pb.EndedJob(name="train", ago_s=5, text="all ranks have left job 'train'")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (why(), 0),
        (why(**waiting(0.5)), 0),
        (why(**waiting(1.0)), 4),
        (why(job=job(state=JOINING, members=(WAITING, MISSING))), 4),
        (why(job=job(state=pb.JOB_STATE_BINDING)), 4),
        (why(job=job(silent_s=(0.1, 6.0))), 4),
        (pb.WhyResponse(ended=ENDED), 3),
    ],
)
def test_the_exit_status_says_whether_something_waits(answer: pb.WhyResponse, status: int) -> None:
    assert EXITS[verdict(answer, 1.0)] == status


def test_a_rank_is_silent_when_it_misses_more_than_one_heartbeat() -> None:
    assert silent_ranks(job(members=(ACTIVE, ACTIVE, FAILED), silent_s=(4.9, 5.1, 50.0))) == [1]


@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_why_lists_slots_and_ranks(where: str, request: pytest.FixtureRequest) -> None:
    console: Console = request.getfixturevalue(where)
    print_why(console, why(**waiting(7.0)), 1.0)
    found = [line.split() for line in lines_of(console)]
    assert ["-", "2", "slots", "miss", "rank", "1."] in found
    assert ["1", "2", "7.0", "s", "never", "0.30", "s", "ago"] in found
    assert ["0", "8", "3", "7.0", "s", "rank", "1"] in found


def test_why_does_not_blame_anybody_for_what_is_in_flight(pipe: Console) -> None:
    print_why(pipe, why(**waiting(0.01)), 1.0)
    assert said(pipe).splitlines()[1] == "Nothing waits; 2 slots in flight, the oldest for 0.01 s."
    assert "miss rank" not in said(pipe)


def test_why_says_how_a_job_ended(pipe: Console) -> None:
    print_why(pipe, pb.WhyResponse(ended=ENDED), 1.0)
    assert said(pipe) == "Job train ended 5.0 s ago: all ranks have left job 'train'.\n"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return lambda: None
