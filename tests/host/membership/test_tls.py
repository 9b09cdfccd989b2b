"""A rank and a switch that do not agree on TLS: the error says which variable to set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.host.membership.test_control_channel import session_of
from tests.switch.service.certificates import Authority, Pair

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.config import ConfigError
from inagg_host.membership import calls
from inagg_host.membership.tls_trouble import tls_trouble
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Has signed nothing of the switch."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def tls(pair: Pair) -> tuple[str, ...]:
    return "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[SwitchProcess]:
    with start_switch(*tls(authority.issue("switch"))) as switch:
        yield switch


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[SwitchProcess]:
    with start_switch(*tls(authority.issue("strict")), "--client-ca", str(authority.pair.certificate)) as switch:
        yield switch


def join(switch: SwitchProcess, ca: Path | None, shown: Pair | None = None) -> str:
    """What a rank is told that cannot join."""
    options: dict[str, Any] = {"reconnect_s": 0.01, "ca": None if ca is None else str(ca)}
    if shown is not None:
        options |= {"certificate": str(shown.certificate), "key": str(shown.key)}
    with pytest.raises(AllReduceError) as caught:
        AllReduce(switch=switch.control, rank=0, workers=1, job="tls", **options)
    said = str(caught.value)
    assert "is `inagg switch` running there" not in said
    assert said.startswith(f"cannot reach the switch at {switch.control}: ")
    return said


def test_a_rank_without_tls_is_told_that_the_switch_has_it(secured: SwitchProcess) -> None:
    assert "it serves with TLS: set INAGG_CA" in join(secured, None)


def test_a_rank_that_trusts_another_authority_is_told_which_variable_is_wrong(
    secured: SwitchProcess, stranger: Authority
) -> None:
    said = join(secured, stranger.pair.certificate)
    assert "its certificate cannot be trusted (" in said
    assert "set INAGG_CA" in said


def test_a_rank_with_tls_is_told_that_the_switch_has_none(authority: Authority) -> None:
    with start_switch() as plain:
        assert "it does not serve with TLS: leave INAGG_CA empty" in join(plain, authority.pair.certificate)


def test_a_rank_without_the_certificate_that_the_switch_wants_is_told_so(
    strict: SwitchProcess, authority: Authority
) -> None:
    assert "set INAGG_CERTIFICATE and INAGG_KEY" in join(strict, authority.pair.certificate)


def test_a_rank_that_trusts_the_switch_sums(secured: SwitchProcess, authority: Authority) -> None:
    with AllReduce(
        switch=secured.control, rank=0, workers=1, job="trusts", ca=str(authority.pair.certificate)
    ) as all_reduce:
        assert all_reduce.config.ca is not None


# --- by reason ---


def test_a_name_that_the_certificate_does_not_have_is_said(authority: Authority) -> None:
    """gRPC says it in words of its own."""
    with SwitchProcess(*tls(authority.issue("elsewhere")), control="127.0.0.2:0") as switch:
        said = join(switch, authority.pair.certificate)
    assert "IP address mismatch, certificate is not valid for '127.0.0.2'): set INAGG_SWITCH to a name in it" in said


@pytest.mark.parametrize(
    ("begins_days", "ends_days", "words"),
    [
        (-2, -1, "(certificate has expired): the switch needs a new one, which it reads at SIGHUP"),
        (1, 2, "(certificate is not yet valid): compare the clocks"),
    ],
)
def test_a_certificate_of_another_time_is_not_blamed_on_the_authority(
    authority: Authority, begins_days: int, ends_days: int, words: str
) -> None:
    pair = authority.issue(f"time{begins_days}", begins=timedelta(days=begins_days), ends=timedelta(days=ends_days))
    with start_switch(*tls(pair)) as switch:
        said = join(switch, authority.pair.certificate)
    assert words in said
    assert "set INAGG_CA" not in said


def test_of_an_unknown_issuer_both_ends_may_lack_a_certificate(secured: SwitchProcess, stranger: Authority) -> None:
    assert "--tls-cert must hold the intermediate certificates" in join(secured, stranger.pair.certificate)


def test_a_certificate_of_ones_own_that_has_expired_is_said_to_be_refused(
    strict: SwitchProcess, authority: Authority
) -> None:
    late = authority.issue("late", begins=timedelta(days=-2), ends=timedelta(days=-1))
    said = join(strict, authority.pair.certificate, shown=late)
    assert "it refuses the certificate that it is shown (it has expired, on " in said
    assert "set INAGG_CERTIFICATE and INAGG_KEY to another" in said


def test_a_certificate_of_ones_own_that_another_authority_has_signed_is_said_to_be_refused(
    strict: SwitchProcess, authority: Authority, stranger: Authority
) -> None:
    said = join(strict, authority.pair.certificate, shown=stranger.issue("mallory"))
    assert "it refuses the certificate that it is shown (its --client-ca has not signed it, as it seems)" in said


# --- before the first call ---


def test_a_file_of_ones_own_that_is_broken_is_named_before_the_switch_is_asked(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """And nobody is told to turn TLS off."""
    own, garbage, ca = authority.issue("own"), tmp_path / "garbage", str(authority.pair.certificate)
    garbage.write_text("garbage")
    broken: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ca": str(garbage)}, "garbage holds no certificate in PEM: see INAGG_CA, INAGG_CERTIFICATE and INAGG_KEY"),
        (
            {"ca": ca, "certificate": str(own.certificate), "key": str(stranger.pair.key)},
            r"stranger\.key is not the key of the certificate in .*own\.pem: see INAGG_CA",
        ),
    )
    for files, words in broken:
        with pytest.raises(ConfigError, match=words):
            AllReduce(switch="127.0.0.1:9", rank=0, workers=1, job="tls", **files)


def test_a_file_that_is_being_replaced_while_a_rank_joins_again_is_tried_again(
    secured: SwitchProcess, authority: Authority, tmp_path: Path
) -> None:
    """A `ConfigError` would end what brings ranks back from the inner group."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pair.certificate.read_bytes())
    with closing(session_of(secured.control, ca=str(ca))) as ours:
        ours.local_host()
    ca.write_text("half of a fi")
    with (
        closing(session_of(secured.control, ca=str(ca), reconnect_s=0.01)) as ours,
        pytest.raises(calls.SessionError, match=r"ca\.pem holds no certificate in PEM: see INAGG_CA"),
    ):
        ours.local_host()


def test_a_certificate_without_an_authority_is_refused_and_not_left_out(authority: Authority) -> None:
    """Whoever has set it takes what is said for encrypted."""
    own = authority.issue("own")
    with pytest.raises(ConfigError, match=r"\(INAGG_CERTIFICATE and INAGG_KEY\) .* without TLS: set INAGG_CA"):
        AllReduce(switch="127.0.0.1:9", rank=0, workers=1, certificate=str(own.certificate), key=str(own.key))


# --- how it is found ---


def test_a_rank_that_tries_again_looks_once_why_tls_fails(
    secured: SwitchProcess, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    tries: list[str] = []
    find, explain = tls_trouble, calls.Calls.explain

    def look(config: Any, address: str, said: str) -> str | None:
        looks.append(said)
        return find(config, address, said)

    def try_(ours: calls.Calls, error: Any) -> calls.SessionError:
        tries.append(error.details())
        return explain(ours, error)

    monkeypatch.setattr(calls, "tls_trouble", look)
    monkeypatch.setattr(calls.Calls, "explain", try_)
    with (
        closing(session_of(secured.control, reconnect_s=2.0, ca=str(stranger.pair.certificate))) as ours,
        pytest.raises(calls.SessionError, match="cannot be trusted"),
    ):
        ours.join(lambda: (ours.local_host(), 5))
    assert len(tries) > 2
    assert len(looks) == len(set(tries)) < len(tries)


@pytest.mark.parametrize("set_to", [None, "INFO"])
def test_grpc_says_nothing_above_the_error_unless_somebody_has_asked_for_it(
    secured: SwitchProcess, stranger: Authority, set_to: str | None
) -> None:
    """It reads how much it may print when it is imported, so in a process of its own."""
    environment = {**os.environ, "INAGG_CA": str(stranger.pair.certificate), "INAGG_SWITCH": secured.control}
    environment.pop("GRPC_VERBOSITY", None)
    if set_to is not None:
        environment["GRPC_VERBOSITY"] = set_to
    program = (
        "import os; from inagg_host.allreduce import AllReduce, AllReduceError\n"
        "print(os.environ.get('GRPC_VERBOSITY'))\n"
        "try: AllReduce(rank=0, workers=1, job='quiet', reconnect_s=0.01)\n"
        "except AllReduceError as error: print(error)\n"
    )
    ended = subprocess.run(
        (sys.executable, "-c", program), env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    left, said = ended.stdout.splitlines()
    assert "cannot be trusted" in said
    assert ("ssl_transport_security" in ended.stderr) == (set_to is not None)
    assert left == str(set_to), "what others start from this process does not inherit it"
