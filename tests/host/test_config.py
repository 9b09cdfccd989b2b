"""What a worker is told wrongly is an error that says what to change, before anything is opened."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from typing import Any

import pytest

from inagg_host.config import TIME_MAX_S, VARIABLES, Config, ConfigError, _warn_of_misspelt, flag, literal_host
from inagg_host.membership.calls import SessionError
from inagg_host.membership.session import Session
from inagg_wire.variables import misspelt


def config(**fields: Any) -> Config:
    return Config(switch="127.0.0.1:47100", rank=0, workers=2, **fields)


@pytest.mark.parametrize("window", [0, -1, 1 << 32, True])
def test_a_window_that_is_none_is_refused(window: int) -> None:
    with pytest.raises(ConfigError, match="window"):
        config(window=window)


@pytest.mark.parametrize("name", ["timeout_s", "join_timeout_s", "reconnect_s"])
@pytest.mark.parametrize("time_s", [float("inf"), 1e300, threading.TIMEOUT_MAX + 1])
def test_a_time_for_ever_is_one_that_can_be_waited(name: str, time_s: float) -> None:
    assert getattr(config(**{name: time_s}), name) == TIME_MAX_S
    assert TIME_MAX_S < threading.TIMEOUT_MAX


@pytest.mark.parametrize(
    ("switch", "why"),
    [
        ("::1", "host:port"), ("fe80::1", "host:port"), ("fd00::1:47100", "in brackets"),
        ("http://10.0.0.1:47100", "no host"), ("host name:1", "no host"), ("h:\u00b2", "no port"), ("h:0", "from 1 on"),
        ("h:65536", "no port"), ("h", "host:port"), (":1", "a host"), ("h:1,", "host:port"),
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_switch_is_refused(switch: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^switch \(INAGG_SWITCH\) is .*: give host:port of.*({why})"):
        Config(switch=switch, rank=0, workers=1)


def test_a_name_that_stands_for_no_address_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    nowhere = Config(switch="no-such-host.invalid:47100", rank=0, workers=1, reconnect_s=0.02)
    session = Session(nowhere, lambda _: None, lambda _: None, lambda: None, lambda: None)
    with (
        closing(session),
        pytest.raises(SessionError, match=r"no way to .* not known\. INAGG_SWITCH says where it is$"),
    ):
        session.local_host()


@pytest.mark.parametrize(
    "switch", ["[::1]:47100", "[fe80::1%eth0]:1", "rack-1.example:47100", "10.0.0.1:1, 10.0.0.2:1"]
)
def test_addresses_of_switches_are_taken(switch: str) -> None:
    assert Config(switch=switch, rank=0, workers=1).switches == tuple(switch.split(", "))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("timeout_s", float("nan"), "seconds above 0"), ("join_timeout_s", 0.0, "seconds above 0"),
        ("reconnect_s", 0.0, "seconds above 0"), ("heartbeat_limit_s", float("nan"), "seconds, not below 0"),
        ("rejoin_limit_s", -1.0, "seconds, not below 0"), ("window", 0, "blocks"), ("seed", -1, "32 bits"),
        ("lanes", 13, "a multiple of 8"), ("format", "fp16", "choose one of nat8"), ("policy", "retry", "choose raise"),
        ("timeout_s", "300", "a number"), ("certificate", "file", "both or neither"), ("job", 3, "give text"),
    ],
)  # fmt: skip
def test_an_error_names_the_variable(name: str, value: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name}\b.*{why}") as caught:
        config(**{name: value})
    assert VARIABLES[name] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        *((text, True) for text in ("1", "true", "True", "YES", "on", " 1 ")),
        *((text, False) for text in ("0", "false", "no", "Off", "")),
    ],
)
def test_yes_and_no_may_be_said_in_several_ways(text: str, truth: bool) -> None:
    assert flag("ANY", {"ANY": text}) is truth


def test_a_variable_that_is_not_set_says_no() -> None:
    assert not flag("ANY", {})


@pytest.mark.parametrize("text", ["2", "y", "maybe", "-1", " "])
def test_what_is_neither_yes_nor_no_is_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^ANY='{text}': give 1 or 0"):
        flag("ANY", {"ANY": text})


@pytest.mark.parametrize("job", ["\udcff", "two\nlines"])
def test_a_name_that_cannot_be_sent_is_refused(job: str) -> None:
    with pytest.raises(ConfigError, match="INAGG_JOB"):
        config(job=job)


@pytest.mark.parametrize("job", ["a" * 65, ""], ids=len)
def test_a_name_of_more_or_fewer_characters_than_a_switch_takes_is_refused(job: str) -> None:
    with pytest.raises(ConfigError, match=rf"^job '{job}' \(INAGG_JOB\) has {len(job)} characters: .* 1 to 64$"):
        config(job=job)


def test_the_longest_name_is_taken() -> None:
    assert config(job="a" * 64).job == "a" * 64


def test_a_job_that_is_named_after_a_script_of_a_long_name_can_be_told_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []
    for last in "xy":
        monkeypatch.setattr("sys.argv", ["/somewhere/" + "a" * 70 + last + ".py"])
        found = Config.from_environment({"INAGG_SWITCH": "127.0.0.1:9", "RANK": "0", "WORLD_SIZE": "1"})
        names.append(found.job)
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]
    assert names[0].startswith("a" * 50)


@pytest.mark.parametrize(
    ("rank", "workers", "why"),
    [(2, 2, "ranks go from 0 to 1"), (-1, 2, "ranks go from 0 to 1"), (0, 0, "WORLD_SIZE"), (0, 1 << 20, "WORLD_SIZE")],
)
def test_ranks_that_cannot_be_are_refused(rank: int, workers: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config(switch="127.0.0.1:47100", rank=rank, workers=workers)


def test_truth_is_no_number() -> None:
    with pytest.raises(ConfigError, match=r"seed \(INAGG_SEED\) is True: give an integer"):
        config(seed=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:5", " 127.0.0.1"])
def test_a_host_that_is_no_literal_address_is_an_error_that_names_the_variable(host: str) -> None:
    with pytest.raises(ConfigError, match=r"INAGG_HOST.*literal address"):
        config(host=host)


def test_a_host_of_one_link_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="fe80::1%eth0, which means something on one link alone"):
        config(host="fe80::1%eth0")


@pytest.mark.parametrize("host", ["fd00::1", "[fd00::1]"])
def test_a_host_may_have_brackets(host: str) -> None:
    assert literal_host(host) == "fd00::1"
    assert config(host=host).host == host


@pytest.mark.parametrize("secret", ["two words", "line\r", "schlüssel"])
def test_a_secret_that_cannot_be_sent_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"INAGG_SECRET.*visible ASCII") as caught:
        config(secret=secret)
    assert secret not in str(caught.value)


def test_a_misspelt_variable_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("INAGG_FROMAT", "tern")
    _warn_of_misspelt.cache_clear()
    for _ in range(2):
        Config.from_environment(switch="127.0.0.1:47100", rank=0, workers=1)
    assert [record.message for record in caplog.records] == misspelt(["INAGG_FROMAT"])


def test_an_empty_variable_is_not_set() -> None:
    """As container files often have it."""
    needed = {"INAGG_SWITCH": "127.0.0.1:47100", "RANK": "0", "WORLD_SIZE": "2"}
    empty = {variable: "" for variable in VARIABLES.values() if variable not in needed}
    assert Config.from_environment(needed | empty) == Config.from_environment(needed)
    with pytest.raises(ConfigError, match="no rank: pass it, or set RANK"):
        Config.from_environment(needed | {"RANK": ""})
