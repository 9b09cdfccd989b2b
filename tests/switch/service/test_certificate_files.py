"""Files of certificates and secrets with which a switch starts, or starts not, and what it says of them."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.switch.service.certificates import Authority, Pair
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Serving
from tests.switch.service.test_metrics import metrics_server

from inagg_link.validity import Validity, validity_of
from inagg_switch.service import server
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.metrics_server import CERTIFICATE_ENDS
from inagg_switch.service.security import Security, SecurityError

DAY = datetime.timedelta(days=1)
Log = list[dict[str, Any]]


@pytest.fixture
def log() -> Any:
    with structlog.testing.capture_logs() as events:
        yield events


def warned(log: Log, event: str) -> str | None:
    """What the last event of that name says; None if there is none."""
    return next((str(one["what"]) for one in reversed(log) if one["event"] == event), None)


def refused() -> Any:
    return pytest.raises(ControlCallError, match="cannot be trusted")


def put(pair: Pair, path: Path) -> Security:
    """A switch with copies of a pair, which may change."""
    shutil.copy(pair.certificate, path / "pem")
    shutil.copy(pair.key, path / "key")
    return Security(path / "pem", path / "key")


# --- a key with a passphrase ---


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(authority: Authority) -> None:
    pair = authority.issue("locked", passphrase=b"x")
    with pytest.raises(SecurityError, match=r"locked\.key is encrypted: give a key without a passphrase"):
        Security(pair.certificate, pair.key).check_files()


def test_a_server_stays_with_its_certificate_if_the_new_key_is_encrypted(
    serve: Callable[..., Serving], authority: Authority, tmp_path: Path
) -> None:
    access = Access(True, authority.pair.certificate, server_name="localhost")
    serving = serve(security=put(authority.issue("localhost"), tmp_path), access=access)
    put(authority.issue("locked", passphrase=b"x"), tmp_path)
    with pytest.raises(SecurityError, match="is encrypted"):
        serving.server.reload()
    serving.client.list()


# --- what is read again ---


def test_a_server_serves_what_was_there_when_it_was_told_to_read_it_again(
    serve: Callable[..., Serving], authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """And not what is there when somebody connects, which may be nothing that can be served."""
    serving = serve(security=put(authority.issue("localhost"), tmp_path))
    put(stranger.issue("localhost"), tmp_path)
    serving.server.reload()
    for name in ("pem", "key"):
        (tmp_path / name).unlink()
    with pytest.raises(SecurityError, match="cannot read"):
        serving.server.reload()
    with MemberClient(serving.server.address, Access(True, stranger.pair.certificate)) as client:
        client.list()


def test_a_server_goes_on_with_its_certificate_until_it_is_told_to_read_another(
    serve: Callable[..., Serving], authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    serving = serve(security=put(authority.issue("localhost"), tmp_path))
    put(stranger.issue("localhost"), tmp_path)
    with MemberClient(serving.server.address, Access(True, authority.pair.certificate)) as client:
        client.list()


def test_a_file_of_secrets_that_cannot_be_used_keeps_the_certificates_too(
    serve: Callable[..., Serving], authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    known = tmp_path / "secrets"
    known.write_text("s3cret\n")
    security = replace(put(authority.issue("localhost"), tmp_path), secret_file=known)
    serving = serve(security=security)
    put(stranger.issue("localhost"), tmp_path)
    known.write_text("")
    with pytest.raises(SecurityError, match="no secret in it"):
        serving.server.reload()
    for who, trusted in ((authority, True), (stranger, False)):
        access = Access(True, who.pair.certificate, secret="s3cret")
        with MemberClient(serving.server.address, access) as client, nullcontext() if trusted else refused():
            client.list()
    known.write_text("s3cret\n")
    serving.server.reload()
    with MemberClient(serving.server.address, Access(True, stranger.pair.certificate, secret="s3cret")) as client:
        client.list()


# --- dates ---


@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [(-2, -1, "has expired, on 20"), (1, 2, "is not valid before 20"), (-1, 1, None)],
)
def test_a_certificate_that_is_not_valid_is_told_at_the_start(
    serve: Callable[..., Serving], authority: Authority, log: Log, begins: int, ends: int, words: str | None
) -> None:
    pair = authority.issue("dated", begins=begins * DAY, ends=ends * DAY)
    serve(security=Security(pair.certificate, pair.key))
    said = warned(log, "certificate_not_valid")
    assert said is None if words is None else words in str(said)


def test_a_certificate_that_is_not_valid_is_told_when_it_is_read_again(
    serve: Callable[..., Serving], authority: Authority, log: Log, tmp_path: Path
) -> None:
    serving = serve(security=put(authority.issue("localhost"), tmp_path))
    assert warned(log, "certificate_not_valid") is None
    put(authority.issue("dated", begins=-2 * DAY, ends=-DAY), tmp_path)
    serving.server.reload()
    assert "has expired" in str(warned(log, "certificate_not_valid"))


@pytest.mark.parametrize(("ends", "told"), [(6 * DAY, True), (8 * DAY, False)])
def test_a_certificate_that_expires_within_a_week_is_told_at_the_start_and_when_it_is_read_again(
    serve: Callable[..., Serving], authority: Authority, log: Log, tmp_path: Path, ends: Any, told: bool
) -> None:
    serving = serve(security=put(authority.issue("dated", ends=ends), tmp_path))
    assert (warned(log, "certificate_expires") is not None) is told
    log.clear()
    serving.server.reload()
    assert (warned(log, "certificate_expires") is not None) is told
    put(authority.issue("dated", ends=90 * DAY), tmp_path)
    log.clear()
    serving.server.reload()
    assert warned(log, "certificate_expires") is None


def test_a_certificate_that_expires_is_told_once_a_day_and_as_an_error_when_it_has_expired(
    serve: Callable[..., Serving], authority: Authority, log: Log, tmp_path: Path
) -> None:
    serving = serve(security=put(authority.issue("dated", ends=10 * DAY), tmp_path))
    began, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)

    def told(until: datetime.timedelta) -> list[tuple[str, str]]:
        """Events up to a time after the start, looked for once an hour."""
        log.clear()
        while times[0] < began + until:
            times[0] += hour
            serving.server.tell_of_dates(times[0])
        return [(one["log_level"], one["event"]) for one in log]

    times = [began]
    assert told(3 * DAY - 2 * hour) == []
    assert told(10 * DAY - 2 * hour) == [("warning", "certificate_expires")] * 7
    assert told(10 * DAY + 2 * hour) == [("error", "certificate_expired")]
    assert told(12 * DAY - 2 * hour) == [("error", "certificate_expired")]
    said = str(log[-1])
    assert "has expired, on 20" in said
    assert f"put a valid one into {tmp_path / 'pem'}, and send SIGHUP" in said


def test_a_certificate_that_expires_while_it_is_served_is_told_without_being_asked(
    serve: Callable[..., Serving], authority: Authority, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DATES_LOOK_S", 0.01)
    serving = serve(security=put(authority.issue("dated", ends=datetime.timedelta(seconds=1)), tmp_path))
    serving.until(lambda: warned(log, "certificate_expired"))
    serving.stop()
    assert serving.server._dates is not None
    serving.until(serving.server._dates.done)


@pytest.mark.parametrize("ends", [DAY, 40 * 365 * DAY])  # the years from 2050 on are written in another way
def test_the_dates_of_a_certificate_are_those_of_the_first_in_the_file(authority: Authority, ends: Any) -> None:
    pair, now = authority.issue("dated", begins=-2 * DAY, ends=ends), datetime.datetime.now(datetime.UTC)
    text = b"subject=CN = dated\n" + pair.certificate.read_bytes() + authority.pair.certificate.read_bytes()
    found = validity_of(text)
    assert found is not None
    assert abs(found.begins - (now - 2 * DAY)) < datetime.timedelta(minutes=1)
    assert abs(found.ends - (now + ends)) < datetime.timedelta(minutes=1)


def test_no_mangled_certificate_is_more_than_unknown(authority: Authority) -> None:
    pem = authority.pair.certificate.read_text()
    head, *lines, tail = pem.splitlines()
    for count in range(len(lines)):
        found = validity_of("\n".join([head, *lines[:count], tail]).encode())
        assert found is None or isinstance(found, Validity)
    for text in ("", head, tail, f"{head}\n{tail}", f"{head}\n!!!!\n{tail}"):
        assert validity_of(text.encode()) is None


def test_metrics_tell_when_the_certificate_expires(
    serve: Callable[..., Serving], authority: Authority, tmp_path: Path
) -> None:
    security = put(authority.issue("localhost"), tmp_path)
    served = [security.certificates()]
    serving = serve()
    server = metrics_server(serving, security=security, served=lambda: served[0])
    plain = metrics_server(serving)

    def ends() -> float | None:
        return server._registry.get_sample_value(CERTIFICATE_ENDS)

    try:
        now = datetime.datetime.now(datetime.UTC)
        assert ends() == pytest.approx((now + DAY).timestamp(), abs=60)
        put(authority.issue("dated", ends=9 * DAY), tmp_path)
        assert ends() == pytest.approx((now + DAY).timestamp(), abs=60)  # it is not served yet
        served[0] = security.certificates()
        assert ends() == pytest.approx((now + 9 * DAY).timestamp(), abs=60)
        assert plain._registry.get_sample_value(CERTIFICATE_ENDS) is None
    finally:
        server.close()
        plain.close()


# --- secrets ---


@pytest.mark.parametrize(
    ("text", "told"),
    [("operator:ooo\n", True), ("s3cret\n", False), ("operator: ooo\n", False), ("s3cret:\u007e:x\n", False)],
)
def test_a_lone_secret_that_looks_like_a_name_and_a_secret_is_told(
    serve: Callable[..., Serving], tmp_path: Path, log: Log, text: str, told: bool
) -> None:
    (tmp_path / "secrets").write_text(text)
    serving = serve(security=Security(secret_file=tmp_path / "secrets"))
    said = warned(log, "secret_without_name")
    assert (said is not None) == told
    assert "ooo" not in str(said)
    if told:
        (tmp_path / "secrets").write_text(text.replace(":", ": "))
        log.clear()
        serving.server.reload()
        assert warned(log, "secret_without_name") is None
