"""Numbers, states and ages as people read them; messages as programs do."""

from __future__ import annotations

import json

import pytest
from tests.switch.cli.messages import ACTIVE, FAILED, MISSING, job, stats

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.cli.terminal_tables import console, table
from inagg_switch.cli.words import age_text, bytes_text, cause_text, member_text, members_text, rate_text, state_text
from inagg_switch.service.plain import plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.25, "0.25"), (1, "1.00"), (7.254, "7.25"), (42, "42.0"), (842.4, "842"), (999.4, "999"),
        (999.6, "1.00k"), (1450, "1.45k"), (23_100_000, "23.1M"), (450e6, "450M"),
        (999.7e6, "1.00G"), (1.2e12, "1.20T"),
    ],
)  # fmt: skip
def test_rates_have_three_digits(value: float, text: str) -> None:
    assert rate_text(value) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (7.3, "7.3 s"), (128, "2m 08s"), (12_000, "3h 20m"), (2 * 86400 + 3 * 3600, "2d 03h")],
)
def test_ages_have_two_units(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
    assert len(text) <= 7


def test_members_are_grouped_by_what_they_do_and_are_no_counts() -> None:
    members = job(members=(ACTIVE, ACTIVE, FAILED, ACTIVE, MISSING)).members
    assert members_text(members) == "ranks 0-1, 3 active, rank 2 failed, rank 4 missing"


def test_every_state_and_cause_has_a_word() -> None:
    assert {state_text(value) for value in pb.JobState.values()} >= {"joining", "running"}
    assert {member_text(value) for value in pb.MemberState.values()} >= {"missing", "active", "left"}
    assert {cause_text(value) for value in pb.Cause.values()} >= {"all left", "member failed"}


def test_bytes_have_binary_units() -> None:
    assert [bytes_text(count) for count in (100, 208 << 10, 64 << 20, 1 << 30)] == [
        "100 Bytes",
        "208 KiB",
        "64 MiB",
        "1 GiB",
    ]


def test_messages_become_plain_json() -> None:
    message = pb.StatsResponse(
        shards=[pb.ShardStats(datagrams_in=2**60, drops={"stale": 3})],
        jobs=[pb.JobStats(job=job(), workers=[pb.WorkerStats(rank=1, contributions=5)])],
    )
    found = json.loads(json.dumps(plain(message)))
    assert found["shards"][0]["datagrams_in"] == 2**60
    assert found["shards"][0]["drops"] == {"stale": 3}
    assert found["jobs"][0]["job"]["state"] == "running"
    assert found["jobs"][0]["job"]["members"][0]["state"] == "active"
    assert found["jobs"][0]["job"]["ends_in_s"] is None
    assert found["jobs"][0]["workers"][0]["contributions"] == 5
    assert list(found) == [field.name for field in stats(0).DESCRIPTOR.fields]


# --- what others have written ---


def test_what_others_have_written_is_neither_markup_nor_control(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    out.print("reason='[/x]' [bold]b[/bold] \x1b[31mred")
    out.print(table(["NAME"], [["[red]n[/red]\x07\n"]]))
    assert capsys.readouterr().out.splitlines() == [
        r"reason='[/x]' [bold]b[/bold] \x1b[31mred",
        "NAME",
        r"[red]n[/red]\x07\n",
    ]
