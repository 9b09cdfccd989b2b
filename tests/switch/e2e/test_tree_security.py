"""TLS and secrets between the switches of a tree: who belongs to it gets in, and the others are told why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.switch.e2e.test_trees import leaf_of, refused, same, sums
from tests.switch.service.certificates import Authority

from inagg_testbed.switch_process import SwitchProcess

SECRETS = "operator: 0per4tor\ntraining: tr4ining\n"


def tls(authority: Authority, name: str) -> tuple[str, ...]:
    pair = authority.issue(name)
    return "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "secrets"
    path.write_text(SECRETS)
    return path


@pytest.fixture(scope="module")
def root(authority: Authority, secrets: Path) -> Iterator[SwitchProcess]:
    with SwitchProcess(*tls(authority, "root"), "--secret-file", str(secrets)) as switch:
        yield switch


@pytest.fixture(autouse=True)
def _as_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INAGG_SECRET", "0per4tor")


def trusting(authority: Authority) -> tuple[str, str]:
    return "--parent-ca", str(authority.pair.certificate)


def test_a_tree_with_tls_and_secrets_gives_the_bits_of_one_switch(
    root: SwitchProcess, authority: Authority, secrets: Path
) -> None:
    options = (*trusting(authority), *tls(authority, "leaf"), "--secret-file", str(secrets))
    guards: dict[str, Any] = {"ca": str(authority.pair.certificate), "secret": "tr4ining"}
    with leaf_of(root, "rack0", *options) as one, leaf_of(root, "rack1", *options) as other:
        flat = sums([root.control] * 2, "flat", **guards)
        assert same(sums([one.control, other.control], "tree", **guards), flat)


def test_a_leaf_that_trusts_another_authority_says_which_option_is_wrong(
    root: SwitchProcess, stranger: Authority
) -> None:
    refused(lambda: leaf_of(root, "x", *trusting(stranger)), r"cannot be trusted \(.*\): give --parent-ca")


def test_a_leaf_without_tls_is_told_that_its_parent_has_it(root: SwitchProcess) -> None:
    refused(lambda: leaf_of(root, "x"), "it serves with TLS: give --parent-ca")


def test_a_leaf_with_tls_is_told_that_its_parent_has_none(authority: Authority) -> None:
    with SwitchProcess() as plain:
        refused(lambda: leaf_of(plain, "x", *trusting(authority)), "it does not serve with TLS: leave out --parent-ca")


def test_a_leaf_without_the_certificate_that_its_parent_wants_is_told_so(authority: Authority) -> None:
    mutual = ("--client-ca", str(authority.pair.certificate))
    with SwitchProcess(*tls(authority, "operator"), *mutual) as strict:
        refused(lambda: leaf_of(strict, "x", *trusting(authority)), "wants a certificate that its --client-ca")
        with leaf_of(strict, "y", *trusting(authority), *tls(authority, "operator")) as leaf:
            assert leaf.process.poll() is None


def test_a_leaf_with_a_wrong_secret_is_told_so(
    root: SwitchProcess, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INAGG_SECRET", "wrong")
    refused(lambda: leaf_of(root, "x", *trusting(authority)), "the shared secret is wrong.*INAGG_SECRET")


def test_a_leaf_that_is_no_operator_is_told_so(
    root: SwitchProcess, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INAGG_SECRET", "tr4ining")
    refused(lambda: leaf_of(root, "x", *trusting(authority)), "'training' is no operator.*INAGG_SECRET")
