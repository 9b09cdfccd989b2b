"""A real browser, and pages in which anything that goes wrong is an error of the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.switch.e2e.running import Switch

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REFRESH = ("--poll-interval", "0.2")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, headless."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox is against pages of others, and root in a container has none.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages, each with a profile of its own. An error in a page, or a breach of its policy, fails the test."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def open_page(**options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Switch]]:
    """Starts switches with a live view, and ends them."""
    started: list[Switch] = []

    def start(*options: str, web: str = "127.0.0.1:0", secret: str = "") -> Switch:
        folder = tmp_path / f"switch{len(started)}"
        switch = Switch(folder, "--web", web, *REFRESH, *options, INAGG_SECRET=secret)
        started.append(switch)
        switch.wait_ready()
        return switch

    yield start
    for switch in started:
        switch.close()
