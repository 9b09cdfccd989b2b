"""TLS, mutual TLS, the shared secret, and what is refused without them."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.switch.cli.test_settings import settings
from tests.switch.control.world import RecordingDriver
from tests.switch.service.certificates import Authority, Pair
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Serving, job_spec, join_request

from inagg_host.membership import tls_trouble as of_ranks
from inagg_link.tls import TlsFault, TlsTrouble
from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.addresses import SettingsError
from inagg_switch.cli import connect
from inagg_switch.service import control_client
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.security import Security, SecurityError, is_local
from inagg_switch.service.server import ControlServer
from inagg_switch.service.tls_trouble import ADVICE, find, tls_trouble
from inagg_testbed.doctor import network as of_doctor


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="session")
def server_pair(authority: Authority) -> Pair:
    return authority.issue("switch")


# ---------------------------------------------------------------------------------------- TLS


def test_calls_over_tls(serve: Callable[..., Serving], authority: Authority, server_pair: Pair) -> None:
    serving = serve(
        security=Security(server_pair.certificate, server_pair.key),
        access=Access(tls=True, ca=authority.pair.certificate),
    )
    assert serving.client.healthy()
    assert serving.client.create(job_spec()).created


def test_a_certificate_is_in_order_for_who_explains_tls_if_it_is_for_who_calls(
    serve: Callable[..., Serving], authority: Authority
) -> None:
    pair, access = authority.issue("plain", names_signer=False), Access(tls=True, ca=authority.pair.certificate)
    serving = serve(security=Security(pair.certificate, pair.key), access=access)
    assert serving.client.healthy()
    assert tls_trouble(serving.server.address, access) is None


def test_a_switch_whose_certificate_is_not_trusted_is_not_called(
    serve: Callable[..., Serving], stranger: Authority, server_pair: Pair
) -> None:
    serving = serve(
        security=Security(server_pair.certificate, server_pair.key),
        access=Access(tls=True, ca=stranger.pair.certificate),
    )
    with pytest.raises(ControlCallError, match=r"its certificate cannot be trusted \(unable to get local") as caught:
        serving.client.list()
    assert caught.value.trouble == TlsTrouble(TlsFault.UNKNOWN_ISSUER, "unable to get local issuer certificate")
    assert caught.value.unreachable


def test_why_tls_fails_is_looked_at_once_for_each_way_in_which_it_does(
    serve: Callable[..., Serving], stranger: Authority, server_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str | None] = []

    def look(address: str, access: Access, said: str | None) -> TlsTrouble | None:
        looks.append(said)
        return find(address, access, said)

    monkeypatch.setattr(control_client, "find", look)
    access = Access(tls=True, ca=stranger.pair.certificate)
    serving = serve(security=Security(server_pair.certificate, server_pair.key), access=access)
    for _ in range(3):
        with pytest.raises(ControlCallError, match="cannot be trusted"):
            serving.client.list()
    assert len(looks) == 1


def test_a_file_of_ones_own_that_is_broken_is_named_before_the_switch_is_called(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    ca, own = authority.pair.certificate, authority.issue("own")
    locked, garbage = authority.issue("locked", passphrase=b"x"), tmp_path / "garbage"
    garbage.write_text("garbage")
    for access, words in (
        (Access(True, garbage), "garbage holds no certificate in PEM"),
        (
            Access(True, ca, own.certificate, stranger.pair.key),
            r"stranger\.key is not the key of the certificate in .*own",
        ),
        (
            Access(True, ca, locked.certificate, locked.key),
            r"locked\.key is encrypted: give a key without a passphrase",
        ),
    ):
        with pytest.raises(SecurityError, match=words):
            MemberClient("127.0.0.1:1", access)


@pytest.mark.parametrize(
    ("begins_days", "ends_days", "fault"), [(-2, -1, TlsFault.EXPIRED), (1, 2, TlsFault.NOT_YET_VALID)]
)
def test_a_leaf_does_not_blame_the_authority_for_a_certificate_of_another_time(
    serve: Callable[..., Serving], authority: Authority, begins_days: int, ends_days: int, fault: TlsFault
) -> None:
    pair = authority.issue(
        f"time{begins_days}", begins=datetime.timedelta(days=begins_days), ends=datetime.timedelta(days=ends_days)
    )
    access = Access(True, authority.pair.certificate)
    serving = serve(security=Security(pair.certificate, pair.key))
    said = tls_trouble(serving.server.address, access)
    assert said is not None
    assert said.endswith(ADVICE[fault])
    assert "--parent-ca" not in said


@pytest.mark.parametrize("advice", [ADVICE, connect.ADVICE, of_ranks.ADVICE, of_doctor.TLS_ADVICE])
def test_every_program_knows_what_to_do_about_every_fault(advice: dict[TlsFault, str]) -> None:
    assert set(advice) == set(TlsFault)


def test_without_tls_a_tls_switch_cannot_be_called(serve: Callable[..., Serving], server_pair: Pair) -> None:
    serving = serve(security=Security(server_pair.certificate, server_pair.key))
    with pytest.raises(ControlCallError, match=r"it serves with TLS$"):
        serving.client.list()


def test_mutual_tls_lets_in_whom_the_authority_knows(
    serve: Callable[..., Serving], authority: Authority, server_pair: Pair
) -> None:
    worker = authority.issue("worker")
    serving = serve(
        security=Security(server_pair.certificate, server_pair.key, client_ca=authority.pair.certificate),
        access=Access(True, authority.pair.certificate, worker.certificate, worker.key),
    )
    assert serving.client.create(job_spec()).created


@pytest.mark.parametrize("shows", ["nothing", "a certificate of another authority"])
def test_mutual_tls_keeps_out_whom_it_does_not_know(
    serve: Callable[..., Serving], authority: Authority, stranger: Authority, server_pair: Pair, shows: str
) -> None:
    worker = stranger.issue("worker")
    shown = (None, None) if shows == "nothing" else (worker.certificate, worker.key)
    serving = serve(
        security=Security(server_pair.certificate, server_pair.key, client_ca=authority.pair.certificate),
        access=Access(True, authority.pair.certificate, *shown),
    )
    with pytest.raises(ControlCallError) as caught:
        serving.client.list()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    wanted = TlsFault.CERTIFICATE_WANTED if shows == "nothing" else TlsFault.CERTIFICATE_REFUSED
    assert caught.value.trouble is not None
    assert caught.value.trouble.fault is wanted


def test_a_certificate_is_for_its_name(serve: Callable[..., Serving], authority: Authority, server_pair: Pair) -> None:
    security = Security(server_pair.certificate, server_pair.key)
    other = serve(security=security, access=Access(True, authority.pair.certificate, server_name="elsewhere"))
    with pytest.raises(ControlCallError, match="not valid for 'elsewhere'") as caught:
        other.client.list()
    assert caught.value.trouble is not None
    assert caught.value.trouble.fault is TlsFault.WRONG_NAME
    right = serve(security=security, access=Access(True, authority.pair.certificate, server_name="localhost"))
    right.client.list()


# ---------------------------------------------------------------------------------------- the shared secret


def attach(client: MemberClient) -> pb.AttachOrder:
    hello = pb.AttachRequest(hello=pb.AttachedSwitch(name="rack3", protocol=PROTOCOL))
    try:
        for order in client._stub.Attach(iter([hello]), metadata=client._metadata):
            return order
    except grpc.RpcError as error:
        raise client._friendly(error) from None
    raise AssertionError("nothing was said")


def calls(client: MemberClient) -> dict[str, Callable[[], object]]:
    member = {"name": "job", "rank": 0, "member": 100}
    return {
        "Create": lambda: client.create(job_spec()),
        "DataPlanes": client.data_planes,
        "Join": lambda: client.join(join_request(0, job_spec(workers=1))),
        "Heartbeat": lambda: client.heartbeat(pb.HeartbeatRequest(**member)),  # type: ignore[arg-type]
        "Leave": lambda: client.leave(pb.LeaveRequest(**member)),  # type: ignore[arg-type]
        "List": client.list,
        "Stats": client.stats,
        "Why": lambda: client.why("job"),
        "Watch": lambda: next(client.watch("job")),
        "Evict": lambda: client.evict("job"),
        "Drain": client.drain,
        "Attach": lambda: attach(client),
        "Health": client.healthy,
    }


GUARDED = [
    "Create", "DataPlanes", "Join", "Heartbeat", "Leave", "List", "Stats", "Why", "Watch", "Evict", "Drain", "Attach",
]  # fmt: skip


def test_every_call_is_guarded() -> None:
    methods = [method.name for method in pb.DESCRIPTOR.services_by_name["Control"].methods]
    assert sorted(methods) == sorted(GUARDED)


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize(("secret", "words"), [(None, "wants a shared secret"), ("s3cret-", "secret is wrong")])
def test_calls_need_the_secret(serve: Callable[..., Serving], name: str, secret: str | None, words: str) -> None:
    serving = serve(security=Security(secret="s3cret"), access=Access(secret=secret))
    with pytest.raises(ControlCallError, match=words) as caught:
        calls(serving.client)[name]()
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert serving.server.controller is not None
    assert not serving.server.controller.registry.jobs


def test_with_the_secret_all_calls_work(serve: Callable[..., Serving]) -> None:
    serving = serve(security=Security(secret="s3cret"), access=Access(secret="s3cret"))
    serving.client.create(job_spec(workers=1))
    todo = calls(serving.client)
    for name in ["DataPlanes", "Join", "Heartbeat", "List", "Stats", "Why", "Watch", "Health", "Leave", "Drain"]:
        todo[name]()


def test_without_the_secret_one_can_ask_for_health_alone(serve: Callable[..., Serving]) -> None:
    serving = serve(security=Security(secret="s3cret"), access=Access(secret="s3cret"))
    with MemberClient(serving.server.address) as other:
        assert other.healthy()


@pytest.mark.parametrize("value", ["s3cret", "Basic s3cret", "Bearer", "bearer s3cret", "Bearer  s3cret"])
def test_the_secret_must_be_a_bearer_token(serve: Callable[..., Serving], value: str) -> None:
    serving = serve(security=Security(secret="s3cret"))
    with grpc.insecure_channel(serving.server.address) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        request = pb.CreateRequest(spec=job_spec())
        with pytest.raises(grpc.RpcError, match="the shared secret is wrong"):
            stub.Create(request, metadata=(("authorization", value),), timeout=5)
        both = (("authorization", "Bearer s3cret"), ("authorization", value))
        with pytest.raises(grpc.RpcError, match="the shared secret is wrong"):
            stub.Create(request, metadata=both, timeout=5)


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "switch.example:1", "*:1"])
def test_without_tls_other_machines_are_served_only_if_that_is_asked_for_by_name(address: str) -> None:
    with pytest.raises(
        SecurityError, match=r"give --tls-cert and --tls-key, or listen on 127\.0\.0\.1, or .* --insecure"
    ):
        ControlServer(RecordingDriver(), address)
    ControlServer(RecordingDriver(), address, security=Security(insecure_anywhere=True))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1", "unix:/tmp/x"])
def test_addresses_of_this_machine_alone_need_no_tls(address: str) -> None:
    assert is_local(address)
    ControlServer(RecordingDriver(), address)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"certificate": Path("a")}, "needs both a certificate and its key"),
        ({"key": Path("a")}, "needs both a certificate and its key"),
        ({"client_ca": Path("a")}, "mutual TLS needs a certificate of the switch too"),
        ({"secret": ""}, "at least one visible ASCII character"),
        ({"secret": "two words"}, "without spaces"),
        ({"secret": "geheim\n"}, "without spaces"),
    ],
)
def test_half_a_guard_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(SecurityError, match=words):
        Security(**wrong)  # type: ignore[arg-type]


def test_files_that_are_no_certificates_are_named(tmp_path: Path, server_pair: Pair, stranger: Authority) -> None:
    junk = tmp_path / "junk"
    junk.write_text("hello")
    with pytest.raises(SecurityError, match=r"cannot read .*missing: No such file"):
        Security(tmp_path / "missing", server_pair.key).check_files()
    with pytest.raises(SecurityError, match="junk holds no certificate in PEM"):
        Security(junk, server_pair.key).check_files()
    with pytest.raises(SecurityError, match="is not the key of the certificate in"):
        Security(server_pair.certificate, stranger.pair.key).check_files()
    with pytest.raises(SecurityError, match="junk holds no certificate in PEM"):
        Security(server_pair.certificate, server_pair.key, client_ca=junk).check_files()


@pytest.mark.parametrize("who", ["a switch", "a command", "a client of a P4 switch"])
def test_a_wrong_file_is_told_alike_whoever_uses_it(
    tmp_path: Path, authority: Authority, server_pair: Pair, who: str
) -> None:
    der = tmp_path / "ca.der"
    der.write_bytes(ssl.PEM_cert_to_DER_cert(authority.pair.certificate.read_text()))
    certificate, key = server_pair.certificate, server_pair.key

    def use(**files: Any) -> None:
        if who == "a switch":
            given = {"certificate": certificate, "key": key, **files}
            given = {"client_ca" if name == "ca" else name: path for name, path in given.items()}
            Security(**given).check_files()
        elif who == "a command":
            MemberClient("127.0.0.1:1", Access(True, **files)).close()
        else:
            Access(True, **files).channel("127.0.0.1:1").close()

    with pytest.raises(SecurityError, match=r"ca\.der is not in PEM, but in DER: openssl x509 -inform der"):
        use(ca=der)
    with pytest.raises(SecurityError, match=f"{key} holds a key, and no certificate"):
        use(certificate=key, key=key)


def test_a_key_that_is_too_short_for_a_server_is_told(authority: Authority) -> None:
    pair = authority.issue("short", curve=ec.SECP192R1())
    with pytest.raises(SecurityError, match=r"short\.pem and .*short\.key cannot be used: .*EE_KEY_TOO_SMALL"):
        Security(pair.certificate, pair.key).check_files()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ca": Path("a")}, "of no use without TLS"),
        ({"server_name": "a"}, "of no use without TLS"),
        ({"tls": True, "key": Path("a")}, "a client certificate needs its key"),
        ({"secret": "a b"}, "without spaces"),
    ],
)
def test_half_an_access_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(SecurityError, match=words):
        MemberClient("127.0.0.1:1", Access(**wrong))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------- a switch that has a parent


@pytest.fixture
def secret_files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "secrets").write_text("operator: o-secret\nalice: a-secret\n")
    (tmp_path / "own").write_text("o-secret\n")
    return "--secret-file", str(tmp_path / "secrets"), "--parent-secret-file", str(tmp_path / "own")


def test_a_switch_has_its_secret_for_its_parent_in_a_file(secret_files: tuple[str, ...]) -> None:
    parent = settings("--parent", "127.0.0.9", *secret_files).parent
    assert parent is not None
    assert parent.access.now().secret == "o-secret"


def test_a_switch_has_one_secret_for_its_parent(secret_files: tuple[str, ...]) -> None:
    leaf = ("--parent", "127.0.0.9")
    with pytest.raises(SettingsError, match=r"--parent-secret-file and the variable INAGG_SECRET both .*: leave out"):
        settings(*leaf, *secret_files, secret="o-secret")
    with pytest.raises(SettingsError, match=r"in a file \(--parent-secret-file\), or in the variable INAGG_SECRET"):
        settings(*leaf, *secret_files[:2])
    with pytest.raises(SettingsError, match="--parent-secret-file needs --secret-file too"):
        settings(*leaf, *secret_files[2:])
    with pytest.raises(SettingsError, match="--parent-secret-file say nothing without --parent"):
        settings(*secret_files)
