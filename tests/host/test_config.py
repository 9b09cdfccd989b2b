"""What a worker is told wrongly is an error that says what to change, before anything is opened."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inagg_host.config import TIME_MAX_S, VARIABLES, Config, ConfigError, literal_host


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
    with pytest.raises(ConfigError, match=rf"^switch .*: give host:port of its control service.*({why})"):
        Config(switch=switch, rank=0, workers=1)


@pytest.mark.parametrize(
    "switch", ["[::1]:47100", "[fe80::1%eth0]:1", "rack-1.example:47100", "10.0.0.1:1, 10.0.0.2:1"]
)
def test_addresses_of_switches_are_taken(switch: str) -> None:
    assert Config(switch=switch, rank=0, workers=1).switches == tuple(switch.split(", "))


@pytest.mark.parametrize("job", ["\udcff", "two\nlines"])
def test_a_name_that_cannot_be_sent_is_refused(job: str) -> None:
    with pytest.raises(ConfigError, match="INAGG_JOB"):
        config(job=job)


def test_truth_is_no_number() -> None:
    with pytest.raises(ConfigError, match="seed is True: give an integer"):
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


def test_an_empty_variable_is_not_set() -> None:
    """As container files often have it."""
    needed = {"INAGG_SWITCH": "127.0.0.1:47100", "RANK": "0", "WORLD_SIZE": "2"}
    empty = {variable: "" for variable in VARIABLES.values() if variable not in needed}
    assert Config.from_environment(needed | empty) == Config.from_environment(needed)
    with pytest.raises(ConfigError, match="no rank: pass it, or set RANK"):
        Config.from_environment(needed | {"RANK": ""})
