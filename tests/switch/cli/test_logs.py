"""The log: a line for people, or an object for machines; never on standard output."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from inagg_switch import logs
from inagg_switch.defaults import LOG_FORMATS

pytestmark = pytest.mark.usefixtures("restored_log")


def logged(format_name: str, level: str = "info") -> tuple[io.StringIO, structlog.stdlib.BoundLogger]:
    stream = io.StringIO()
    logs.configure(format_name, level, stream)
    return stream, structlog.get_logger("inagg.test")


def test_json_has_an_object_a_line() -> None:
    stream, log = logged("json")
    log.info("hello", job="träin", ranks=(1, 2), left_s=1 / 3)
    logging.getLogger("other.library").warning("from %s", "elsewhere")
    try:
        raise ValueError("a fault")
    except ValueError as error:
        log.error("failed", exc_info=error)
    first, second, third = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["job"], first["ranks"]) == ("hello", "info", "träin", [1, 2])
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("from elsewhere", "warning")
    assert "ValueError: a fault" in third["exception"]


def test_people_get_a_line_without_colours_where_there_is_no_terminal() -> None:
    stream, log = logged("human")
    log.warning("stalled", job="train", longest_s=1 / 3, rank=None, reason="")
    line = stream.getvalue()
    assert "\x1b" not in line
    assert line.endswith("[warning  ] stalled job=train longest_s=0.333\n")


@pytest.mark.parametrize("format_name", LOG_FORMATS)
def test_what_is_below_the_level_is_not_logged(format_name: str) -> None:
    stream, log = logged(format_name, "warning")
    log.info("quiet")
    logging.getLogger("other").info("quiet")
    log.error("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_a_second_configuration_replaces_the_first() -> None:
    first, _ = logged("human")
    second, log = logged("human")
    log.info("hello")
    assert first.getvalue() == ""
    assert second.getvalue().count("hello") == 1
