"""TLS and secrets between the switches of a tree: who belongs to it gets in, and the others are told why not."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.switch.e2e.test_trees import LIMITS, PATIENCE_S, leaf_of, refused, same, sums
from tests.switch.service.certificates import Authority
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import job_spec

from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError
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


@pytest.fixture(scope="module")
def plain() -> Iterator[SwitchProcess]:
    """Without TLS and secrets."""
    with SwitchProcess() as switch:
        yield switch


def mutual(authority: Authority) -> tuple[str, str]:
    """A switch with these asks for certificates."""
    return "--client-ca", str(authority.pair.certificate)


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[SwitchProcess]:
    """Asks for certificates; a tenant may have one job."""
    with SwitchProcess(*tls(authority, "operator"), *mutual(authority), "--quota-jobs", "1") as switch:
        yield switch


@pytest.fixture(autouse=True)
def _as_operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "root" in request.fixturenames:
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


def test_a_leaf_with_tls_is_told_that_its_parent_has_none(plain: SwitchProcess, authority: Authority) -> None:
    refused(lambda: leaf_of(plain, "x", *trusting(authority)), "it does not serve with TLS: leave out --parent-ca")


def test_a_leaf_without_the_certificate_that_its_parent_wants_is_told_so(
    strict: SwitchProcess, authority: Authority
) -> None:
    """One that has it is served: see the tests below."""
    refused(lambda: leaf_of(strict, "x", *trusting(authority)), "wants a certificate that its --client-ca")


def access(authority: Authority, name: str) -> Access:
    pair = authority.issue(name)
    return Access(True, authority.pair.certificate, pair.certificate, pair.key)


def test_nobody_but_an_operator_ends_a_job_through_a_leaf(strict: SwitchProcess, authority: Authority) -> None:
    """The certificate of the leaf itself is an operator's."""
    options = (*tls(authority, "operator"), *mutual(authority))
    with (
        leaf_of(strict, "hall", *trusting(authority), *options) as hall,
        leaf_of(hall, "rack", *trusting(authority), *options) as rack,
        MemberClient(strict.control, access(authority, "alice")) as alice,
    ):
        alice.create(job_spec("train", lanes=1440))
        for leaf in (hall, rack):
            with MemberClient(leaf.control, access(authority, "bob")) as bob:
                with pytest.raises(ControlCallError, match="'bob' is no operator of this switch"):
                    bob.evict("train")
                with pytest.raises(ControlCallError, match="'bob' is no operator of this switch"):
                    bob.drain()
            with (
                MemberClient(leaf.control, access(authority, "alice")) as alice_here,
                pytest.raises(ControlCallError, match="'alice' may have 1 jobs"),
            ):
                alice_here.create(job_spec("more", lanes=1440))
        with MemberClient(rack.control, access(authority, "operator")) as operator:
            operator.evict("train")
        assert not alice.list().jobs


@pytest.mark.parametrize("asks", [True, False])
def test_a_leaf_that_asks_for_no_certificates_below_one_that_does_says_so(
    strict: SwitchProcess, authority: Authority, asks: bool
) -> None:
    own = (*tls(authority, "operator"), *trusting(authority))
    with leaf_of(strict, f"asks-{asks}", *own, *(mutual(authority) if asks else ())) as leaf:
        assert ("this switch asks for none: who calls it has no name" in leaf.printed()) is not asks
        if not asks:
            with (
                MemberClient(leaf.control, Access(True, authority.pair.certificate)) as somebody,
                pytest.raises(ControlCallError, match=r"is no operator.*needs --client-ca"),
            ):
                somebody.drain()


def test_a_leaf_below_one_that_asks_for_no_certificates_is_told_nothing_of_them(
    root: SwitchProcess, authority: Authority
) -> None:
    with leaf_of(root, "rack", *trusting(authority), *tls(authority, "rack")) as leaf:
        assert "asks for none" not in leaf.printed()


@pytest.mark.parametrize(
    ("control", "data", "told"),
    [
        ("0.0.0.0:0", "127.0.0.1:0", ["may use this tree", "--data an address"]),
        ("127.0.0.1:0", "0.0.0.0:0", ["--listen an address"]),
        ("127.0.0.1:0", "127.0.0.1:0", []),
    ],
)
def test_a_leaf_that_is_open_to_all_or_out_of_reach_says_so(
    plain: SwitchProcess, control: str, data: str, told: list[str]
) -> None:
    below = ("--parent", plain.control, "--name", f"rack-{len(told)}", "--insecure")
    with SwitchProcess(*below, control=control, data=data) as leaf:
        said = leaf.printed()
    every = ["may use this tree", "--data an address", "--listen an address"]
    assert [words for words in every if words in said] == told


def test_a_leaf_whose_certificate_is_no_operators_is_told_which_option_says_who_it_is(
    strict: SwitchProcess, authority: Authority
) -> None:
    refused(
        lambda: leaf_of(strict, "x", *trusting(authority), *tls(authority, "rack")),
        "'rack' is no operator.*--tls-cert of this switch",
    )


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


# --- files that are read again ---


def signalled(switch: SwitchProcess, event: str) -> None:
    """Have a switch read its files again, and wait until it has logged an event since."""
    before, give_up_at = switch.printed().count(event), time.monotonic() + PATIENCE_S
    os.kill(switch.process.pid, signal.SIGHUP)
    while switch.printed().count(event) == before:
        assert time.monotonic() < give_up_at, switch.printed()
        time.sleep(0.02)


def test_a_job_outlives_new_files_of_a_leaf_and_then_a_root_that_takes_no_others(
    authority: Authority, tmp_path: Path
) -> None:
    known, own, pem, key = (tmp_path / name for name in ("known", "own", "pem", "key"))

    def show(name: str, secret: str) -> None:
        """Have the leaf's files be others."""
        pair = authority.issue(name)
        shutil.copy(pair.certificate, pem)
        shutil.copy(pair.key, key)
        own.write_text(secret)

    def renew_or_restart(rank: int, step: int) -> None:
        if rank == 0 and step == 2:
            show("after", "new")
            signalled(leaf, "parent_access_renewed")
        if rank == 0 and step == 4:
            root.stop()
            known.write_text("operator: new\ntraining: tr4ining\n")
            started.append(stack.enter_context(SwitchProcess(*guards, **where)))

    known.write_text("operator: old\noperator: new\ntraining: tr4ining\n")
    show("before", "old")
    guards = (*tls(authority, "root"), "--secret-file", str(known), *LIMITS)
    files = (
        "--tls-cert",
        str(pem),
        "--tls-key",
        str(key),
        "--secret-file",
        str(known),
        "--parent-secret-file",
        str(own),
    )
    started: list[SwitchProcess] = []
    with ExitStack() as stack:
        root = stack.enter_context(SwitchProcess(*guards))
        where: dict[str, Any] = {"control": root.control, "data": root.data}
        leaf = stack.enter_context(leaf_of(root, "rack", *trusting(authority), *files))
        ranks: dict[str, Any] = {"ca": str(authority.pair.certificate), "secret": "tr4ining", "reconnect_s": 30.0}
        undisturbed = sums([leaf.control] * 2, "undisturbed", 6, **ranks)
        assert same(sums([leaf.control] * 2, "renewed", 6, between=renew_or_restart, **ranks), undisturbed)
        assert started
        assert "parent_access_not_renewed" not in leaf.printed()


def test_a_leaf_serves_metrics_of_its_certificate_and_of_whom_it_refused(
    root: SwitchProcess, authority: Authority, secrets: Path
) -> None:
    """The root knows neither."""
    options = (*trusting(authority), *tls(authority, "metered"), "--secret-file", str(secrets))
    trust = ssl.create_default_context(cafile=authority.pair.certificate)
    with (
        socket.create_server(("127.0.0.1", 0)) as opened,
        leaf_of(root, "rack0", *options, "--metrics", f"fd:{opened.fileno()}") as leaf,
    ):
        access = Access(tls=True, ca=authority.pair.certificate, secret="guess")
        with MemberClient(leaf.control, access) as client, pytest.raises(ControlCallError, match="secret is wrong"):
            client.list()
        url = f"https://127.0.0.1:{opened.getsockname()[1]}"
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": "Bearer tr4ining"})
        with urllib.request.urlopen(request, timeout=10, context=trust) as reply:
            found = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[0] != "#")
        with urllib.request.urlopen(f"{url}/healthz", timeout=10, context=trust) as reply:
            assert reply.read() == b"ok\n"
    assert float(found["inagg_switch_refused_callers_total"]) == 1
    assert 0 < float(found["inagg_tls_certificate_expiry_seconds"]) - time.time() <= 86400
    assert any(name.startswith("inagg_build_info") for name in found)
