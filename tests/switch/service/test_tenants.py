"""Several who share a switch: names, quotas, operators, and secrets that change while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tests.switch.service.certificates import Authority
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Serving, job_spec, join_request

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.policy import Policy
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.security import Secrets, Security, SecurityError, read_secrets

SECRETS = "# who may\nalice: a-secret\nbob: b-secret\n\noperator: o-secret\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.write_text(SECRETS)
    return path


def client_of(serving: Serving, secret: str) -> MemberClient:
    return MemberClient(serving.server.address, Access(secret=secret))


# --- the file ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s3cret\n", {"": ("s3cret",)}),
        ("s3:cret", {"": ("s3:cret",)}),
        (SECRETS, {"alice": ("a-secret",), "bob": ("b-secret",), "operator": ("o-secret",)}),
        ("a: x\nb: y\na : z\n", {"a": ("x", "z"), "b": ("y",)}),
    ],
)
def test_a_file_has_one_secret_or_several_with_names(
    tmp_path: Path, text: str, found: dict[str, tuple[str, ...]]
) -> None:
    (tmp_path / "secrets").write_text(text)
    assert read_secrets(tmp_path / "secrets") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no secret in it"),
        ("a: x\nb: x\n", "two names have the same secret"),
        ("a: x\na: y\nb: y\n", "two names have the same secret"),
        ("a: x\na : x\n", "'a' has one secret twice"),
        ("x\ny\n", "give each of several secrets a name"),
        ("a: x\ny\n", "give each of several secrets a name"),
        ("a: x y\n", "visible ASCII"),
        ("alice: \n", "there is no secret after 'alice:'"),
        ("bob: y\nalice:\n", "there is no secret after 'alice:'"),
        (": x\n", "there is no name before"),
        ("rack3 s3cret\n", "name, colon, space, secret"),
        ("a: \u00e9\n", "visible ASCII"),
    ],
)
def test_what_cannot_be_a_file_of_secrets_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "secrets").write_text(text)
    with pytest.raises(SecurityError, match=words):
        read_secrets(tmp_path / "secrets")


# --- quotas ---


def test_each_has_a_quota_of_jobs_of_his_own(serve: Callable[..., Serving], file: Path) -> None:
    serving = serve(security=Security(secret_file=file), policy=Policy(quota_jobs=2))
    with client_of(serving, "a-secret") as alice, client_of(serving, "b-secret") as bob:
        for name in ("one", "two"):
            alice.create(job_spec(name))
        with pytest.raises(ControlCallError, match=r"'alice' may have 2 jobs at a time, and would have 3") as caught:
            alice.create(job_spec("three"))
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(ControlCallError, match="'alice' may have 2 jobs"):
            alice.join(join_request(0, job_spec("three")))
        bob.create(job_spec("three"))
        alice.create(job_spec("one"))  # it is there


def test_a_job_that_has_ended_does_not_count(serve: Callable[..., Serving], file: Path) -> None:
    serving = serve(security=Security(secret_file=file), policy=Policy(quota_slots=32))
    with client_of(serving, "a-secret") as alice, client_of(serving, "o-secret") as operator:
        alice.create(job_spec("one", window=16))
        with pytest.raises(
            ControlCallError, match="'alice' may have 32 slots on each shard at a time, and would have 64"
        ):
            alice.create(job_spec("two", window=16))
        operator.evict("one")
        alice.create(job_spec("two", window=16))


def test_each_has_a_quota_of_watches(serve: Callable[..., Serving], file: Path) -> None:
    serving = serve(security=Security(secret_file=file), policy=Policy(quota_watches=2))
    with client_of(serving, "a-secret") as alice, client_of(serving, "b-secret") as bob:
        alice.create(job_spec())
        watches = [alice.watch("job"), alice.watch("job")]
        for watch in watches:
            next(watch)
        with pytest.raises(ControlCallError, match="'alice' watches 2 streams already"):
            next(alice.watch("job"))
        next(bob.watch("job"))
        watches[0].close()  # type: ignore[attr-defined]

        def watches_again() -> bool:
            try:
                return bool(next(alice.watch("job")))
            except ControlCallError:  # the switch has not heard yet that the stream is closed
                return False

        serving.until(watches_again)


def test_limits_that_keep_slots_for_long_have_a_bound(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(heartbeat_limit_max_s=60.0, rejoin_limit_max_s=120.0))
    with pytest.raises(ControlCallError, match="cannot have heartbeat_limit_s 61: this switch takes up to 60 seconds"):
        serving.client.create(job_spec(heartbeat_limit_s=61.0))
    with pytest.raises(ControlCallError, match="cannot have rejoin_limit_s 121"):
        serving.client.create(job_spec(rejoin_limit_s=121.0))
    serving.client.create(job_spec(heartbeat_limit_s=60.0, rejoin_limit_s=120.0))


# --- operators ---


def test_an_operator_ends_a_job_and_its_ranks_are_told(serve: Callable[..., Serving], file: Path) -> None:
    serving = serve(security=Security(secret_file=file))
    with client_of(serving, "a-secret") as alice, client_of(serving, "o-secret") as operator:
        alice.join(join_request(0, job_spec(workers=1)))
        watch = alice.watch("job")
        next(watch)
        operator.evict("job", "needed\notherwise")
        ended = next(event for event in watch if event.HasField("job_ended")).job_ended
        assert ended.text == r"an operator of the switch ended job 'job': needed\notherwise"
        assert ended.cause == pb.CAUSE_EVICTED
        with pytest.raises(ControlCallError, match="no job 'job'"):
            operator.evict("job")


@pytest.mark.parametrize("call", [lambda client: client.evict("job"), lambda client: client.drain()])
def test_others_are_no_operators(
    serve: Callable[..., Serving], file: Path, call: Callable[[MemberClient], object]
) -> None:
    serving = serve(security=Security(secret_file=file))
    with client_of(serving, "a-secret") as alice, client_of(serving, "o-secret") as operator:
        alice.create(job_spec())
        with pytest.raises(ControlCallError, match="'alice' is no operator of this switch: call as operator") as caught:
            call(alice)
        assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
        assert [job.spec.name for job in operator.list().jobs] == ["job"]
        alice.create(job_spec("next"))


def test_where_nobody_has_a_name_everybody_is_an_operator(serve: Callable[..., Serving]) -> None:
    serving = serve(security=Security(secret="s3cret"), access=Access(secret="s3cret"))
    serving.client.create(job_spec())
    serving.client.evict("job")
    assert serving.client.drain() == 0


def test_a_certificate_names_who_calls(serve: Callable[..., Serving], authority: Authority, tmp_path: Path) -> None:
    server, alice, boss = (authority.issue(name) for name in ("localhost", "alice", "boss"))
    security = Security(
        server.certificate, server.key, client_ca=authority.pair.certificate, operators=frozenset({"boss"})
    )
    access = [
        Access(True, authority.pair.certificate, who.certificate, who.key, server_name="localhost")
        for who in (alice, boss)
    ]
    serving = serve(security=security, access=access[0], policy=Policy(quota_jobs=1))
    serving.client.create(job_spec("one"))
    with pytest.raises(ControlCallError, match="'alice' may have 1 jobs"):
        serving.client.create(job_spec("two"))
    with pytest.raises(ControlCallError, match="'alice' is no operator of this switch: call as boss"):
        serving.client.drain()
    with MemberClient(serving.server.address, access[1]) as client:
        assert client.drain() == 0


def test_a_switch_that_drains_takes_new_jobs_again_when_told(switch: Serving) -> None:
    switch.client.join(join_request(0, job_spec("runs", workers=1)))
    assert switch.client.drain() == 1
    with pytest.raises(ControlCallError, match="only running jobs finish") as caught:
        switch.client.create(job_spec("late"))
    assert "stop" not in str(caught.value), "it may as well go on"
    switch.client.drain(off=True)
    switch.client.create(job_spec("late"))


def test_no_operator_opens_a_switch_again_that_is_about_to_stop(switch: Serving) -> None:
    switch.client.join(join_request(0, job_spec("runs", workers=1)))
    switch.loop.run(switch.server.drain(), 5)
    assert switch.client.drain() == 1, "that an operator asks for it too does not change what it is for"
    with pytest.raises(ControlCallError, match="about to stop") as caught:
        switch.client.drain(off=True)
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(ControlCallError, match="only running jobs finish"):
        switch.client.create(job_spec("late"))


# --- what changes while it runs ---


def test_secrets_are_read_again(serve: Callable[..., Serving], file: Path) -> None:
    serving = serve(security=Security(secret_file=file))
    file.write_text(SECRETS.replace("a-secret", "new-secret"))
    with client_of(serving, "a-secret") as before, client_of(serving, "new-secret") as after:
        before.list()
        serving.server.reload()
        with pytest.raises(ControlCallError, match="the shared secret is wrong"):
            before.list()
        after.list()
        file.write_text("")
        with pytest.raises(SecurityError, match="no secret in it"):
            serving.server.reload()
        after.list()


def test_a_secret_is_changed_while_a_job_runs_that_has_the_old_one(serve: Callable[..., Serving], file: Path) -> None:
    serving = serve(security=Security(secret_file=file), policy=Policy(quota_jobs=1))
    with client_of(serving, "a-secret") as before, client_of(serving, "a-second") as after:
        before.join(join_request(0, job_spec("one", workers=1)))
        file.write_text(f"{SECRETS}alice: a-second\n")
        serving.server.reload()
        before.heartbeat(pb.HeartbeatRequest(name="one", rank=0, member=100))
        with pytest.raises(ControlCallError, match="'alice' may have 1 jobs at a time"):
            after.create(job_spec("two"))
        file.write_text(SECRETS.replace("a-secret", "a-second"))
        serving.server.reload()
        with pytest.raises(ControlCallError, match="the shared secret is wrong"):
            before.list()
        after.heartbeat(pb.HeartbeatRequest(name="one", rank=0, member=100))


def test_certificates_are_read_again(serve: Callable[..., Serving], authority: Authority, stranger: Authority) -> None:
    pair, other = authority.issue("localhost"), stranger.issue("localhost")
    serving = serve(
        security=Security(pair.certificate, pair.key),
        access=Access(True, authority.pair.certificate, server_name="localhost"),
    )
    serving.client.list()
    for path, new in ((pair.certificate, other.certificate), (pair.key, other.key)):
        path.write_bytes(new.read_bytes())
    serving.server.reload()
    access = Access(True, stranger.pair.certificate, server_name="localhost")
    with MemberClient(serving.server.address, access) as client:
        client.list()


def test_no_secret_is_found_by_what_is_like_it() -> None:
    secrets = Secrets({"a": ("x",), "b": ("xy",)})
    assert secrets.who(b"Bearer x") == "a"
    assert secrets.who(b"Bearer xy") == "b"
    assert secrets.who(b"Bearer xyz") is None
    assert secrets.who(b"") is None
