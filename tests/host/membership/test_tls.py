"""A rank and a switch that do not agree on TLS: the error says which variable to set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.switch.service.certificates import Authority, Pair

from inagg_host.allreduce import AllReduce, AllReduceError
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


def join(switch: SwitchProcess, ca: Path | None) -> str:
    """What a rank is told that cannot join."""
    options: dict[str, Any] = {"reconnect_s": 0.01, "ca": None if ca is None else str(ca)}
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


def test_a_rank_without_the_certificate_that_the_switch_wants_is_told_so(authority: Authority) -> None:
    mutual = ("--client-ca", str(authority.pair.certificate))
    with start_switch(*tls(authority.issue("strict")), *mutual) as strict:
        assert "set INAGG_CERTIFICATE and INAGG_KEY" in join(strict, authority.pair.certificate)


def test_a_rank_that_trusts_the_switch_sums(secured: SwitchProcess, authority: Authority) -> None:
    with AllReduce(
        switch=secured.control, rank=0, workers=1, job="trusts", ca=str(authority.pair.certificate)
    ) as all_reduce:
        assert all_reduce.config.ca is not None
