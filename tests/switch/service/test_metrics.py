"""Prometheus metrics: every counter has a name with its unit, a help text and bounded labels."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.switch.service.certificates import DAY, Authority, Pair
from tests.switch.service.serving import Serving, job_spec

from inagg_switch.control.events import ROOT
from inagg_switch.control.topology import AttachedSwitch
from inagg_switch.driver import Counters, JobCounters, SlotWait
from inagg_switch.service import metrics as service_metrics
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.http_server import Listener, check_http_address
from inagg_switch.service.metric_names import METRICS
from inagg_switch.service.metrics import RefusedCollector, families, take
from inagg_switch.service.metrics_server import CERTIFICATE_ENDS, MetricsServer
from inagg_switch.service.refused_callers import WRONG_SECRET, RefusedCallers
from inagg_switch.service.security import Security, SecurityError, Served
from inagg_wire.errors import Reason


def metrics_server(
    serving: Serving,
    address: str = "127.0.0.1:0",
    security: Security | None = None,
    served: Served | None = None,
) -> MetricsServer:
    """Serve metrics, for who closes it."""
    controller = serving.server.controller
    assert controller is not None

    async def start() -> MetricsServer:
        guard = security or Security()
        check_http_address(address, guard, "the metrics")
        return MetricsServer(Listener(address), controller, served or guard.certificates, guard.secrets())

    return serving.loop.run(start(), 5)


@contextmanager
def metrics(
    serving: Serving,
    address: str = "127.0.0.1:0",
    security: Security | None = None,
    served: Served | None = None,
) -> Iterator[str]:
    """Serve metrics; their URL."""
    server = metrics_server(serving, address, security, served)
    try:
        yield server.url
    finally:
        server.close()


def address_of(url: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = url.split("/")[2].rpartition(":")
    return host, int(port)


def job_counters(**counts: int) -> JobCounters:
    """Of a job with two children."""
    return JobCounters([0, 0], [0, 0], [0, 0], [0, 0], [0, 0], **counts)


def scrape(url: str) -> list[Metric]:
    """What Prometheus would read."""
    # Its own context: from Python 3.12 on urllib keeps the first one for good, with what SSL_CERT_FILE was then.
    with urllib.request.urlopen(url, timeout=5, context=ssl.create_default_context()) as reply:
        return list(text_string_to_metric_families(reply.read().decode()))


def samples(found: list[Metric]) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by name and labels."""
    return {(s.name, tuple(s.labels.values())): s.value for family in found for s in family.samples}


def snapshot(serving: Serving) -> None:
    """Have the control plane look at the switch."""
    controller = serving.server.controller
    assert controller is not None
    serving.loop.run(controller.snapshot(), 5)


@pytest.fixture
def busy(serve: Callable[..., Serving]) -> Serving:
    """A switch with a job that has counted something."""
    serving = serve()
    number = serving.join_all(job_spec("train"))[0].job
    serving.driver.job_counters[number] = JobCounters([5, 6], [1, 0], [0, 2], [3, 0], [100, 200], 5, 9)
    serving.driver.waits[number] = [SlotWait(3, 1, (1,), 2.5)]
    serving.beat(1, "train", round_trip_s=0.002)
    snapshot(serving)
    return serving


def test_every_counter_of_a_shard_has_a_metric_of_its_own(serve: Callable[..., Serving]) -> None:
    serving = serve()
    counters = Counters(
        datagrams_in=1, datagrams_out=2, bytes_in=3, bytes_out=4, notices=5, send_refused=6, kernel_drops=7, cpu_s=8.0,
        not_captured=9,
    )  # fmt: skip
    serving.driver.counters = lambda shard: counters  # type: ignore[method-assign]
    snapshot(serving)
    with metrics(serving) as url:
        found = {name: value for (name, _), value in samples(scrape(url)).items()}
    names = (
        "received_datagrams", "sent_datagrams", "received_bytes", "sent_bytes", "notices", "send_refused_datagrams",
        "kernel_drops", "cpu_seconds", "not_captured_datagrams",
    )  # fmt: skip
    assert [found[f"inagg_shard_{name}_total"] for name in names] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_ranks_that_have_not_joined_are_counted_and_a_job_in_which_nothing_waits_says_0(switch: Serving) -> None:
    call = switch.join_later(1, job_spec("train", workers=3))
    switch.waiting(1, name="train")
    snapshot(switch)
    with metrics(switch) as url:
        found = samples(scrape(url))
    assert found["inagg_job_members", ("train", "waiting")] == 1
    assert found["inagg_job_members", ("train", "missing")] == 2
    assert found["inagg_job_slots_waiting", ("train",)] == 0
    switch.client.evict("train")
    with pytest.raises(ControlCallError):
        call.result()


def test_a_target_with_its_host_is_answered_like_one_without(busy: Serving) -> None:
    """As whoever takes it for a proxy asks (RFC 9112, section 3.2.2)."""
    with metrics(busy) as url, socket.create_connection(address_of(url), 5) as connection:
        connection.sendall(b"GET http://other.example/healthz?x=1 HTTP/1.0\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"200"


def test_a_scrape_has_the_counters_of_a_job(busy: Serving) -> None:
    with metrics(busy) as url:
        found = samples(scrape(url))
    assert found["inagg_job_contributions_total", ("train", "1")] == 6
    assert found["inagg_job_duplicates_total", ("train", "0")] == 1
    assert found["inagg_job_resends_total", ("train", "1")] == 2
    assert found["inagg_job_stale_total", ("train", "0")] == 3
    assert found["inagg_job_received_bytes_total", ("train", "1")] == 200
    assert found["inagg_job_round_trip_seconds", ("train", "1")] == 0.002
    assert ("inagg_job_round_trip_seconds", ("train", "0")) not in found, "its heartbeats have not said"
    assert found["inagg_job_results_total", ("train",)] == 5
    assert found["inagg_job_invalid_codes_total", ("train",)] == 9
    assert found["inagg_job_slots_waiting", ("train",)] == 1
    assert found["inagg_job_longest_wait_seconds", ("train",)] == 2.5
    assert found["inagg_job_members", ("train", "active")] == 2
    assert found["inagg_shard_received_datagrams_total", ("0", "")] == 7
    assert found["inagg_shard_slots_leased", ("0", "")] == 32
    assert found["inagg_switch_healthy", ()] == 1
    assert found["inagg_jobs", ("running",)] == 1


def test_a_scrape_has_what_the_switches_below_count(busy: Serving) -> None:
    controller = busy.server.controller
    assert controller is not None

    async def attach() -> list[Metric]:
        assert controller.last_snapshot is not None
        registry, own = controller.registry, controller.last_snapshot.shards[ROOT][0]
        registry.topology.attach(AttachedSwitch("rack0", ROOT, registry.shards, registry.topology.limits))
        (number,) = (job.number for job in registry.jobs)
        leaf = replace(own, datagrams_in=70, jobs={number: job_counters(partials=8, partials_again=3)})
        controller.last_snapshot = replace(
            controller.last_snapshot,
            shards={ROOT: (own,), "rack0": (leaf,)},
            silent_below={"rack1": "shard 1 has not answered for 3 s"},
        )
        return list(families(take(controller)))

    found = samples(busy.loop.run(attach(), 5))
    assert found["inagg_shard_received_datagrams_total", ("0", "")] == 7
    assert found["inagg_shard_received_datagrams_total", ("0", "rack0")] == 70
    assert ("inagg_shard_cpu_seconds_total", ("0", "rack0")) in found
    assert found["inagg_shard_slots_leased", ("0", "rack0")] == 32
    assert found["inagg_job_partials_total", ("train", "rack0")] == 8
    assert found["inagg_job_partials_again_total", ("train", "rack0")] == 3
    assert found["inagg_switch_below_healthy", ("rack0",)] == 1
    assert found["inagg_switch_below_healthy", ("rack1",)] == 0
    assert ("inagg_switch_below_healthy", ("",)) not in found


def test_a_job_that_ended_is_gone_and_counted(busy: Serving) -> None:
    with metrics(busy) as url:
        busy.leave(0, "train", end=True)
        found = samples(scrape(url))
    assert not [labels for _, labels in found if "train" in labels]
    assert found["inagg_jobs_ended_total", ("ended_by_member",)] == 1


def test_a_switch_that_does_not_answer_can_be_scraped(busy: Serving) -> None:
    busy.driver.look_error = "gone"
    busy.until(lambda: not busy.client.healthy())
    with metrics(busy) as url:
        found = samples(scrape(url))
    assert found["inagg_switch_healthy", ()] == 0
    assert found["inagg_job_results_total", ("train",)] == 5, "the last snapshot"


def test_a_scrape_asks_nothing_of_the_switch(busy: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("a scrape asked the switch")

    controller = busy.server.controller
    assert controller is not None

    async def there() -> object:
        monkeypatch.setattr(busy.driver, "counters", asked)
        found = take(controller)
        monkeypatch.undo()
        return found

    assert busy.loop.run(there(), 5)


def test_every_metric_has_a_help_text_and_a_name_with_its_unit() -> None:
    for name, (kind, text, labels) in METRICS.items():
        assert re.fullmatch(r"inagg_[a-z_]+", name)
        assert kind in ("counter", "gauge")
        assert text.endswith(".")
        assert set(labels) <= {"shard", "job", "rank", "reason", "state", "cause", "fault", "switch"}
        assert not name.endswith(("_total", "_s", "_ms")), "counters get _total; units are seconds and bytes, in full"


def test_all_metrics_come_in_a_scrape(busy: Serving) -> None:
    controller = busy.server.controller
    assert controller is not None

    async def there() -> set[str]:
        assert controller.last_snapshot is not None
        counters = controller.last_snapshot.shards[ROOT][0]
        counters.drops[Reason.STALE] = 1
        counters.faults["dropped"] = 1
        (number,) = (job.number for job in controller.registry.jobs)
        leaf = replace(counters, datagrams_in=70, jobs={number: job_counters(partials=8, partials_again=3)})
        controller.last_snapshot = replace(controller.last_snapshot, shards={ROOT: (counters,), "rack0": (leaf,)})
        found = families(take(controller)), RefusedCollector(RefusedCallers()).collect()
        return {family.name for of in found for family in of}

    assert busy.loop.run(there(), 5) == set(METRICS)


def test_metrics_have_the_certificate_of_the_switch(
    busy: Serving, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.issue("metrics")
    with metrics(busy, security=Security(pair.certificate, pair.key)) as url:
        assert url.startswith("https://127.0.0.1:")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.pair.certificate))
        assert samples(scrape(url))["inagg_switch_healthy", ()] == 1


def test_certificates_that_are_read_again_are_shown_to_the_next_connection(
    busy: Serving, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "switch.pem", tmp_path / "switch.key"
    security = Security(certificate, key)

    def install(pair: Pair) -> str:
        shutil.copy(pair.certificate, certificate)
        shutil.copy(pair.key, key)
        return pair.certificate.read_text()

    first = install(authority.issue("first"))
    served = [security.certificates()]
    with metrics(busy, security=security, served=lambda: served[0]) as url:
        assert ssl.get_server_certificate(address_of(url)) == first
        second = install(stranger.issue("second"))
        assert ssl.get_server_certificate(address_of(url)) == first
        served[0] = security.certificates()
        assert ssl.get_server_certificate(address_of(url)) == second


def test_metrics_for_other_machines_must_be_asked_for_by_name(busy: Serving) -> None:
    with pytest.raises(SecurityError, match="--insecure"), metrics(busy, "0.0.0.0:0"):
        pass
    with metrics(busy, "0.0.0.0:0", Security(insecure_anywhere=True)) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        assert scrape(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(("host", "served"), [("0.0.0.0", ["127.0.0.1"]), ("[::]", ["127.0.0.1", "::1"])])
def test_all_addresses_are_those_that_the_help_says(
    host: str, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Socket(socket.socket):
        """As with net.ipv6.bindv6only = 1."""

        def __init__(self, family: int = -1, *rest: int, **more: int) -> None:
            super().__init__(family, *rest, **more)
            if self.family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with monkeypatch.context() as bound_so:
        bound_so.setattr(socket, "socket", Socket)
        listener = Listener(f"{host}:0")
    with listener:
        listener.socket.listen()
        port = listener.socket.getsockname()[1]
        found = []
        for family, here in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as asks:
                found += [here] * (asks.connect_ex((here, port)) == 0)
        assert found == served


def test_a_port_in_use_is_an_error(busy: Serving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serving = metrics(busy, f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match="in use"):
            serving.__enter__()


# --- the server ---


def status_of(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_there_are_two_paths(busy: Serving) -> None:
    with metrics(busy) as url:
        base = url.removesuffix("/metrics")
        assert status_of(f"{base}/healthz") == (200, "ok\n")
        assert status_of(f"{base}/elsewhere") == (404, "there are /metrics and /healthz\n")
        busy.driver.look_error = "gone"
        busy.until(lambda: status_of(f"{base}/healthz") == (503, "unhealthy\n"))


def test_metrics_want_the_secret_and_health_does_not(busy: Serving) -> None:
    with metrics(busy, security=Security(secret="s3cret")) as url:
        assert status_of(url)[0] == 401
        assert status_of(url, Authorization="Bearer other")[0] == 401
        assert status_of(url, Authorization="Bearer s3cret")[0] == 200
        assert status_of(url.replace("/metrics", "/healthz"))[0] == 200


def test_a_wrong_secret_is_told_with_who_and_counted_and_one_that_is_missing_is_asked_for(busy: Serving) -> None:
    with structlog.testing.capture_logs() as log, metrics(busy, security=Security(secret="s3cret")) as url:
        assert status_of(url)[0] == 401
        assert status_of(url, Authorization="Bearer guess-1")[0] == 401
        counted = status_of(url, Authorization="Bearer s3cret")[1]
    lines = [(e["service"], e["calls"], e["peer"], e["why"]) for e in log if e["event"] == "callers_refused"]
    assert lines == [("metrics", 1, "127.0.0.1", WRONG_SECRET)]
    assert "guess-1" not in str(log)
    assert "\ninagg_switch_refused_callers_total 1.0\n" in counted


def connect(url: str, trust: Authority, pair: Pair | None = None, plain: bytes = b"") -> None:
    """Connect as somebody whom TLS may refuse."""
    with suppress(OSError), socket.create_connection(address_of(url), 5) as connection:
        if plain:
            connection.sendall(plain)
            connection.recv(1)
            return
        context = ssl.create_default_context(cafile=trust.pair.certificate)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as speaks:
            speaks.recv(1)


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("nobody", "it shows no certificate"),
        ("stranger", "its certificate is not valid here: unable to get local issuer certificate"),
        ("late", "its certificate is not valid here: certificate has expired"),
        ("doubter", "it refuses this switch: tlsv1 alert unknown ca"),
        ("plain", "it speaks no TLS"),
        ("probe", "it speaks no TLS"),
    ],
)
def test_who_is_refused_by_tls_is_told_and_counted_and_who_hangs_up_is_not(
    busy: Serving, authority: Authority, stranger: Authority, who: str, why: str
) -> None:
    own, valid = authority.issue("own"), authority.issue("valid")
    security = Security(own.certificate, own.key, authority.pair.certificate)
    refused = busy.server.refused
    with structlog.testing.capture_logs() as log, metrics(busy, security=security) as url:
        if who == "nobody":
            connect(url, authority)
        elif who == "stranger":
            connect(url, authority, stranger.issue("odd"))
        elif who == "late":
            connect(url, authority, authority.issue("late", begins=-2 * DAY, ends=-DAY))
        elif who == "doubter":
            connect(url, stranger, valid)
        elif who == "plain":
            connect(url, authority, plain=b"GET /metrics HTTP/1.1\r\n\r\n")
        else:
            socket.create_connection(address_of(url), 5).close()
            connect(url, authority, plain=b"GET / HTTP/1.1\r\n\r\n")  # it is refused when the one before is over
        busy.until(lambda: refused.connections)
    lines = [(e["service"], e["connections"], e["peer"], e["why"]) for e in log if e["event"] == "tls_refused"]
    assert lines == [("metrics", 1, "127.0.0.1", why)]
    assert refused.connections == 1


def test_build_process_and_calls_are_told(busy: Serving) -> None:
    with metrics(busy) as url:
        text = status_of(url)[1]
    assert re.search(r'inagg_build_info\{driver="fake",version="[^"]+"\} 1', text)
    assert "process_open_fds " in text
    assert re.search(r'inagg_control_call_seconds_bucket\{call="Join",code="OK",le="\+Inf"\} [1-9]', text)


def test_who_asks_for_headers_alone_gets_them(busy: Serving) -> None:
    with metrics(busy) as url:
        request = urllib.request.Request(url.replace("/metrics", "/healthz"), method="HEAD")
        with urllib.request.urlopen(request, timeout=5) as reply:
            assert (reply.status, reply.headers["Content-Length"], reply.read()) == (200, "3", b"")


def test_an_answer_that_waits_for_the_event_loop_does_not_delay_its_end(
    busy: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_metrics, "SNAPSHOT_S", 120.0)
    server = metrics_server(busy)

    async def close() -> float:
        with socket.create_connection(address_of(server.url), 5) as asks:
            asks.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            time.sleep(0.2)  # on the loop, as closing is
            begun = time.monotonic()
            server.close()
            return time.monotonic() - begun

    assert busy.loop.run(close(), 300) < service_metrics.SNAPSHOT_S / 2


ALERTS = Path(__file__).parents[3] / "switch" / "alerts.yml"
BELOW_HEALTHY = "inagg_switch_below_healthy"
"""Of a root that has switches below it alone."""


def test_alerts_are_of_metrics_and_labels_that_there_are(busy: Serving) -> None:
    expressions = re.findall(r"expr: (.+)", ALERTS.read_text())
    assert len(expressions) == ALERTS.read_text().count("- alert: ")
    with metrics(busy) as url:
        told = {sample.name for family in scrape(url) for sample in family.samples}
    counters = {f"{name}_total" for name, (kind, _, _) in METRICS.items() if kind == "counter"}
    for expression in expressions:
        names = re.findall(r"\b(?:inagg|process)_[a-z_]+", expression)
        assert names
        assert set(names) <= told | counters | {CERTIFICATE_ENDS, BELOW_HEALTHY}
        assert any(name.startswith("inagg_") for name in names), "every process has the others"
        for reason in re.findall(r'reason="(\w+)"', expression):
            assert reason in {one.label for one in Reason}
