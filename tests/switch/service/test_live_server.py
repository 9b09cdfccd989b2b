"""The live view over HTTP: by which names it may be called where there is no secret, and what its answers forbid."""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.switch.service.certificates import Authority
from tests.switch.service.serving import Serving
from tests.switch.service.test_live import ask, get

from inagg_switch.control.drops import MEANINGS
from inagg_switch.service.http_server import Listener
from inagg_switch.service.live import server
from inagg_switch.service.live.recorder import Question
from inagg_switch.service.live.server import LiveServer
from inagg_switch.service.security import Security


@contextmanager
def live(
    serving: Serving, security: Security, control: str = "127.0.0.1:47100", name: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve the page at ``name``; its URL, by address."""
    controller = serving.server.controller
    assert controller is not None

    async def start() -> LiveServer:
        await controller.snapshot()
        guards = security, security.secrets(), security.certificates
        listener = Listener("127.0.0.1:0")
        listener.place = listener.place.replace("127.0.0.1", name)
        return LiveServer(listener, controller, *guards, control=control, needs=["A", "B"])

    made = serving.loop.run(start(), 5)
    try:
        yield made.url.replace(name, "127.0.0.1")
    finally:
        made.close()


@pytest.fixture
def switch(serve: Callable[..., Serving]) -> Serving:
    serving = serve()
    serving.join_all()
    return serving


def statuses(url: str, *hosts: str) -> list[int]:
    return [get(f"{url}api/live", Host=host)[0] for host in hosts]


def test_it_answers_to_the_names_that_it_has_in_any_case(switch: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node7")
    with live(switch, Security(), "Switch.Example:47100") as url:
        assert statuses(url, "LocalHost:80", "node7", "NODE7:80", "switch.example:80", "127.0.0.1") == [200] * 5
        assert statuses(url, "node8", "example", "node7:80:80", "node7:x", "other/node7") == [421] * 5


def test_it_answers_to_the_name_by_which_it_listens(switch: Serving) -> None:
    with live(switch, Security(), name="web.example") as url:
        assert statuses(url, "web.example:80", "other.example:80") == [200, 421]


def test_whom_a_certificate_lets_in_may_call_it_by_any_name(switch: Serving, authority: Authority) -> None:
    """Browsers of others have none to show."""
    pair, trusted = authority.issue("web"), authority.pair.certificate
    context = ssl.create_default_context(cafile=trusted)
    context.load_cert_chain(pair.certificate, pair.key)
    with live(switch, Security(pair.certificate, pair.key, trusted)) as url:
        request = urllib.request.Request(f"{url}api/live", headers={"Host": "web.example"})
        with urllib.request.urlopen(request, timeout=5, context=context) as reply:
            assert reply.status == 200


def test_figures_are_kept_by_nobody_and_taken_for_no_page(switch: Serving) -> None:
    with live(switch, Security()) as url:
        for path in ("", "api/live"):
            status, headers, _ = get(f"{url}{path}")
            assert status == 200
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_a_page_is_told_what_workers_need_and_what_reasons_mean(switch: Serving) -> None:
    with live(switch, Security()) as url:
        said = ask(url)
    assert said["needs"] == ["A", "B"]
    assert said["meanings"] == MEANINGS


def test_a_page_may_ask_for_the_ranks_of_several_jobs() -> None:
    assert server.question_from({"job": ["a", "b"]}).jobs == {"a", "b"}


def test_where_the_control_plane_does_not_answer_a_page_is_told_so(
    switch: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: LiveServer, question: Question) -> dict[str, Any]:
        await asyncio.sleep(0.5)
        return {}

    monkeypatch.setattr(server, "ANSWER_S", 0.1)
    monkeypatch.setattr(LiveServer, "_ask", hang)
    with live(switch, Security()) as url:
        status, _, body = get(f"{url}api/live")
    assert (status, body) == (503, b"the control plane is too busy to answer\n")


def test_when_it_has_ended_nobody_serves_the_page(switch: Serving) -> None:
    with live(switch, Security()) as url:
        assert get(url)[0] == 200
    with pytest.raises(OSError, match="refused"):
        get(url)
