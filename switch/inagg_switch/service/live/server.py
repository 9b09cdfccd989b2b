"""The live view over HTTP: a page, its few files, and what it shows as JSON, which it asks for once a second.

The page itself says nothing of the switch, so whoever reaches it may load it. What it shows is guarded like the control
service: where the switch has a secret, the page asks the reader for it and sends it as a bearer token.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from ...addresses import SettingsError, split_address
from ...control.drops import MEANINGS
from ...version import version_text
from ..controller import Controller
from ..http_server import HttpServer, Listener, Reply, Request
from ..security import Secrets, Security, Served
from .recorder import Question, Recorder

DATA: Final = "/api/live"
FOLDER: Final = Path(__file__).with_name("page")
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ANSWER_S: Final = 5.0
"""Seconds that a page waits for the event loop."""


class LiveServer:
    """Serves the page. Guarded as its module says."""

    def __init__(
        self,
        listener: Listener,
        controller: Controller,
        security: Security,
        secrets: Secrets,
        served: Served,
        *,
        control: str,
        needs: Sequence[str] = (),
    ) -> None:
        """``control``: the address of the control service as workers are told it; ``needs``: the variables that they
        need besides; for the page to say. On the controller's event loop."""
        self._recorder = Recorder(controller)
        self._loop = asyncio.get_running_loop()
        self._about = {"control": control, "needs": list(needs), "version": version_text(), "meanings": MEANINGS}
        self._files = {
            "/" if path.name == "index.html" else f"/{path.name}": Reply(
                path.read_bytes(), KINDS[path.suffix], headers=HEADERS
            )
            for path in FOLDER.iterdir()
            if path.suffix in KINDS
        }
        self._security, self._secrets = security, secrets
        names = "localhost", socket.gethostname(), control.rpartition(":")[0], split_address(listener.place)[0]
        self._names = {name.lower() for name in names}
        self._server = HttpServer(listener, "web", self._answer, served, secrets, controller.refused)
        self.url = f"{self._server.url}/"

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _answer(self, request: Request) -> Reply:
        if request.path in self._files:
            return self._files[request.path]
        if request.path != DATA:
            return Reply.text(HTTPStatus.NOT_FOUND, "the live view is at /")
        if not request.may:
            return Reply.text(HTTPStatus.UNAUTHORIZED, "give the switch's secret, as a bearer token")
        if not self._is_ours(request.headers.get("Host", "")):
            return Reply.text(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this switch has no secret, so it answers only those who call it by address or as localhost: else a "
                "page of somebody else's could have a browser ask",
            )
        try:
            question = question_from(request.query)
        except ValueError:
            return Reply.text(HTTPStatus.BAD_REQUEST, "look and event are numbers")
        try:
            shown = asyncio.run_coroutine_threadsafe(self._ask(question), self._loop).result(ANSWER_S)
        except TimeoutError:
            return Reply.text(HTTPStatus.SERVICE_UNAVAILABLE, "the control plane is too busy to answer")
        return Reply(msgspec.json.encode({**self._about, **shown}), "application/json", headers=HEADERS)

    async def _ask(self, question: Question) -> dict[str, Any]:
        return self._recorder.answer(question)

    def _is_ours(self, host: str) -> bool:
        """Whether the name by which we are called is one of this machine, where it matters. A browser sends a secret to
        nobody else, but what has none could be read by a page of others' whose name leads here (DNS rebinding)."""
        if self._secrets.by_name or self._security.client_ca is not None:
            return True
        try:
            name, _ = split_address(host.lower(), 0)
            ipaddress.ip_address(name)
        except SettingsError:
            return False
        except ValueError:
            return name in self._names
        return True


def question_from(query: Mapping[str, list[str]]) -> Question:
    """The question that a page asks. Raises ValueError."""
    return Question(
        run=query.get("run", [""])[0],
        look=int(query.get("look", ["0"])[0]),
        event=int(query.get("event", ["0"])[0]),
        jobs=frozenset(query.get("job", ())),
    )
