"""The live view in a real browser: what real jobs do appears, what hangs is said, and what a job says does no harm."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.switch.e2e.running import Run, Switch, environment, gradients, until, worker

from inagg_host.allreduce import AllReduce

pytestmark = [pytest.mark.browser, pytest.mark.slow]
QUICK = {"heartbeat_limit_s": 2.0}
IMG = "<img src=x onerror='window.harmed = true'>"


def text(page: Any, selector: str = "body") -> str:
    """What a reader sees."""
    return " ".join(page.inner_text(selector, timeout=120_000).split())  # the first job on a machine compiles first


def see(page: Any, words: str, selector: str = "body") -> None:
    """Wait until a reader sees some words."""
    until(lambda: words in text(page, selector), 60, f"{words!r} on the page")


def test_an_empty_page_says_what_to_do_and_that_works(
    start: Callable[..., Switch], new_page: Callable[..., Any]
) -> None:
    switch, page = start(), new_page()
    page.goto(switch.ready["web"])
    see(page, "No job yet")
    assert f"INAGG_SWITCH={switch.address} torchrun" in text(page, "#jobs")
    command = page.inner_text("#jobs pre >> nth=1")
    shell = ["sh", "-c", command.replace("python -c", 'exec "$PYTHON" -c', 1)]
    process = subprocess.Popen(shell, env=environment(PYTHON=sys.executable))
    try:
        see(page, "1 worker", "article[aria-label='Job hello']")
        see(page, "a second", "#figures")
        until(lambda: not text(page, ".hero .value").startswith("0 "), 60, "a sum")
    finally:
        process.kill()
        process.wait()


def test_a_job_appears_with_its_figures(start: Callable[..., Switch], new_page: Callable[..., Any]) -> None:
    switch, page = start(), new_page()
    page.goto(switch.ready["web"])
    with worker(switch.address, "resnet50", [0, 1], 2, **QUICK) as ranks:
        assert ranks.has_summed()
        card = "article[aria-label='Job resnet50']"
        see(page, "running", card)
        assert "nat8 · 2 workers" in text(page, card)
        assert page.locator(f"{card} tbody tr").count() == 2
        see(page, "ms", f"{card} tbody tr >> nth=0")  # a round trip, which heartbeats tell
        see(page, "epoch 1 began", "#events")
        see(page, "resnet50: ranks 0-1", "#tree")
        drawn = f"{card} .head .chart"
        until(lambda: re.search(r"now [\d.]+ ?[kM]?/s", page.get_attribute(drawn, "aria-label")), 60, "a rate")
        assert page.get_attribute(f"{drawn} .line", "d").count("L") >= 1
        assert re.search(r"[\d.]+ [kM] a second", text(page, "#figures"))
        assert page.title().startswith("1 job")


def test_a_job_that_hangs_says_for_whom(start: Callable[..., Switch], new_page: Callable[..., Any]) -> None:
    switch, page = start(), new_page()
    page.goto(switch.ready["web"])
    slow = {"heartbeat_limit_s": 30.0}
    with (
        worker(switch.address, "stuck", [0], 2, **slow) as one,
        worker(switch.address, "stuck", [1], 2, **slow) as other,
    ):
        assert one.has_summed()
        assert other.has_summed()
        other._process.send_signal(signal.SIGSTOP)
        try:
            see(page, "Waits")
            see(page, "miss rank 1", ".verdict")
            page.click("text=with an incomplete sum")
            see(page, "rank 1", "details[open] tbody")
            page.wait_for_timeout(1000)
            assert page.locator("details[open]").count() == 1, "what the reader has opened stays open"
        finally:
            other._process.send_signal(signal.SIGCONT)
        see(page, "Moves", ".verdict")


def test_what_ended_is_kept_over_a_restart_and_a_lost_switch_is_said(
    start: Callable[..., Switch], new_page: Callable[..., Any]
) -> None:
    switch, page = start(), new_page()
    page.goto(switch.ready["web"])
    see(page, "live")
    Run(switch.address, gradients(2, [50_000], 1), job="brief").results()
    see(page, "brief", "#ended")
    with switch.client() as client:
        until(lambda: client.list().ended[0].HasField("totals"))
        (ended,) = client.list().ended
    elements = ended.totals.results * ended.spec.lanes
    see(page, f"{elements / 1e3:.3g} k", "#ended")
    switch.signal(signal.SIGKILL)
    see(page, "has not answered since", "#notices")
    see(page, "no answer since", "#link")
    assert "brief" in text(page, "#ended"), "what it said last stays"
    start(web=switch.ready["web"].split("/")[2])
    see(page, "the switch was started again", "#events")
    see(page, "live", "#link")
    assert text(page, "#notices") == ""
    assert "brief" in text(page, "#ended")
    page.reload()
    see(page, "No job has ended yet", "#ended")


def test_nothing_that_a_job_says_is_read_as_html(start: Callable[..., Switch], new_page: Callable[..., Any]) -> None:
    switch, page = start(), new_page()
    page.goto(switch.ready["web"])
    all_reduce = AllReduce(switch=switch.address, rank=0, workers=1, job="rude")
    see(page, "rude", "#jobs")
    all_reduce.close(IMG)
    see(page, IMG, "#events")
    with pytest.raises(Exception, match="letters, digits"):
        AllReduce(switch=switch.address, rank=0, workers=1, job=IMG)

    def rename(route: Any) -> None:  # as if the switch let such a name pass
        answer = route.fetch().json()
        route.fulfill(json=json.loads(json.dumps(answer).replace("rude", IMG).replace("127.0.0.1", IMG)))

    page.route("**/api/live*", rename)
    page.reload()
    see(page, IMG, "#events")
    see(page, IMG, "#ended")
    see(page, IMG, "header")
    assert page.evaluate("window.harmed") is None
    assert page.locator("img:not([src='icon.svg'])").count() == 0


def test_the_secret_is_asked_for_and_not_told(start: Callable[..., Switch], new_page: Callable[..., Any]) -> None:
    switch, page = start(secret="s3cret-of-ours"), new_page()
    page.goto(switch.ready["web"])
    see(page, "This switch has a secret", "#door")
    assert not page.is_visible("#main")
    page.fill("#secret", "guess")
    page.keyboard.press("Enter")
    see(page, "That is not the secret", "#door")
    page.fill("#secret", "s3cret-of-ours")
    page.keyboard.press("Enter")
    see(page, "No job yet", "#jobs")
    assert "INAGG_SECRET" in text(page, "#jobs"), "workers need it too"
    assert "s3cret-of-ours" not in page.content()
    page.reload()
    see(page, "No job yet", "#jobs")
    other = new_page()
    other.goto(switch.ready["web"])
    see(other, "This switch has a secret", "#door")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_by_day_and_by_night(
    start: Callable[..., Switch], new_page: Callable[..., Any], scheme: str
) -> None:
    switch, page = start(), new_page(color_scheme=scheme, viewport={"width": 360, "height": 740})
    page.goto(switch.ready["web"])
    name = "experiment/of-last-tuesday/with-a-name-of-64-characters-in-all-x"
    with worker(switch.address, name, [0, 1, 2], 3, **QUICK) as ranks:
        assert ranks.has_summed()
        see(page, "running", "#jobs")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shade = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (shade < 64) == (scheme == "dark")


def test_a_tree_is_drawn_with_the_ranks_at_each_switch(
    start: Callable[..., Switch], new_page: Callable[..., Any], tmp_path: Any
) -> None:
    root, page = start(), new_page()
    with Switch(tmp_path / "leaf", "--parent", root.address, "--name", "rack0") as leaf:
        page.goto(root.ready["web"])
        with worker(leaf.address, "vit", [0, 1], 2, **QUICK) as ranks:
            assert ranks.has_summed()
            see(page, "vit: ranks 0-1", "#tree ul ul")
            assert "rack0" in text(page, "#tree ul ul")
            assert "the root" in text(page, "#tree")
            see(page, "rack0", "#jobs tbody")
        leaf.signal(signal.SIGKILL)
        until(lambda: "rack0" not in text(page, "#tree"), 60, "the leaf's end")
        see(page, "rack0", "#events")
