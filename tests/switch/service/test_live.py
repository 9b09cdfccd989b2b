"""The live view over HTTP: who may ask, what is answered, and that it is what `top`, `why` and `jobs` say."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.switch.service.certificates import Authority
from tests.switch.service.serving import Serving, job_spec

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control import events as ev
from inagg_switch.control.policy import Policy
from inagg_switch.driver import JobCounters, SlotWait
from inagg_switch.service.http_server import Listener
from inagg_switch.service.live import recorder
from inagg_switch.service.live.recorder import Question
from inagg_switch.service.live.sentences import Mood, sentence
from inagg_switch.service.live.server import FOLDER, LiveServer
from inagg_switch.service.plain import plain
from inagg_switch.service.rates import as_plain, rates
from inagg_switch.service.security import Security

QUICK = Policy(tick_interval_s=0.02, poll_interval_s=0.02)


@contextmanager
def live(serving: Serving, security: Security | None = None, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve the page; its URL."""
    controller = serving.server.controller
    assert controller is not None

    async def start() -> LiveServer:
        guard = security or Security()
        await controller.snapshot()
        guards = guard, guard.secrets(), guard.certificates
        return LiveServer(Listener(address), controller, *guards, control="127.0.0.1:47100", needs=["X"])

    server = serving.loop.run(start(), 5)
    try:
        yield server.url
    finally:
        server.close()


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, headers=headers)
    try:
        # Its own context: from Python 3.12 on urllib keeps the first one for good, with what SSL_CERT_FILE was then.
        with urllib.request.urlopen(request, timeout=5, context=ssl.create_default_context()) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def ask(url: str, **query: object) -> dict[str, Any]:
    words = "&".join(f"{name}={value}" for name, value in query.items())
    status, _, body = get(f"{url}api/live?{words}")
    assert status == 200, body
    return dict(json.loads(body))


def until(url: str, so: Callable[[dict[str, Any]], object], **query: object) -> dict[str, Any]:
    """Ask until it is so."""
    for _ in range(250):
        said = ask(url, **query)
        if so(said):
            return said
    raise AssertionError(f"it did not come about: {said}")


@pytest.fixture
def busy(serve: Callable[..., Serving]) -> Serving:
    """A switch with a job that has counted something, and that waits."""
    serving = serve(policy=QUICK)
    serving.join_all(job_spec("train"))
    serving.driver.job_counters[1] = JobCounters([5, 6], [1, 0], [0, 2], [3, 0], [100, 200], 5, 9)
    serving.driver.waits[1] = [SlotWait(slot, 1, (1,), 2.5) for slot in range(30)]
    return serving


def test_a_wrong_secret_is_told_and_a_page_that_has_none_yet_is_not(busy: Serving) -> None:
    refused = busy.server.refused
    with capture_logs() as logs, live(busy, Security(secret="s3cret")) as url:
        assert get(f"{url}api/live")[0] == 401
        assert refused.callers == 0
        assert get(f"{url}api/live", Authorization="Bearer guess")[0] == 401
    assert [(line["service"], line["peer"]) for line in logs if line["event"] == "callers_refused"] == [
        ("web", "127.0.0.1")
    ]
    assert refused.callers == 1


# --- what is said ---


def test_the_page_is_told_what_top_and_why_tell(busy: Serving) -> None:
    busy.beat(1, "train", round_trip_s=0.002)
    with live(busy) as url:
        said = until(url, lambda s: s["now"]["jobs"][0]["workers"][1]["round_trip_s"] and s["why"][0]["slots"])
        top = as_plain(rates(None, busy.client.stats()))
        why = plain(busy.client.why("train", 16))
    assert said["control"] == "127.0.0.1:47100"
    assert said["needs"] == ["X"]
    assert said["healthy"] is True
    assert said["now"].keys() == top.keys()
    (job,), (topped,) = said["now"]["jobs"], top["jobs"]
    for name in ("results", "invalid_codes", "slots_waiting"):
        assert job[name] == topped[name]
    strip = [{k: v for k, v in worker.items() if k != "rates"} for worker in job["workers"]]
    assert strip == [{k: v for k, v in worker.items() if k != "rates"} for worker in topped["workers"]]
    (told,) = said["why"]
    assert told["name"] == "train"
    assert told["verdict"] == "waits"
    assert told["slots"] == why["slots"]
    assert len(told["slots"]) == 16
    assert told["slots_waiting"] == 30
    assert [rank["rank"] for rank in told["ranks"]] == [1]


def test_rates_and_the_course_are_of_the_polls(busy: Serving) -> None:
    with live(busy) as url:
        first = until(url, lambda s: len(s["points"]) >= 3)
        looks = [point["look"] for point in first["points"]]
        assert looks == list(range(looks[0], looks[-1] + 1))
        (job,) = first["points"][-1]["jobs"]
        assert job["number"] == 1
        assert job["waiting"] == 30
        assert len(job["ranks"]) == 2
        later = until(url, lambda s: s["points"], run=first["run"], look=first["look"])
        assert later["points"][0]["look"] == first["look"] + 1, "only what the page does not have"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_has_a_notice_for_each_that_is_silent() -> None:
    said = {"now": {"silent": ["shard 1 has not answered for 8 s", "switch 'rack3' has not answered for 5 s"]}}
    script = f"""
        import {{ silent }} from {json.dumps((FOLDER / "view.js").as_uri())};
        console.log(JSON.stringify(silent({json.dumps(said)})));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "--no-warnings", "-e", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first["children"] == [
        "▲ Shard 1 has not answered for 8 s: its figures are the last that it gave, or missing."
    ]
    assert first["attributes"]["key"] == "silent-shard 1 has not answered for "
    assert "rack3" in second["children"][0]
    assert "view.silent(say)" in (FOLDER / "main.js").read_text()


def test_events_come_once_and_as_sentences(busy: Serving) -> None:
    with live(busy) as url:
        first = ask(url)
        assert [e["text"] for e in first["events"] if "epoch" in e["text"]] == ["epoch 1 began: all ranks are here"]
        assert {event["job"] for event in first["events"]} == {"train"}
        assert not ask(url, run=first["run"], event=first["event"])["events"]
        busy.leave(1, "train", end=True, reason="<b>out</b> of data")
        (left, *_) = until(url, lambda s: s["events"], run=first["run"], event=first["event"])["events"]
        assert "<b>out</b> of data" in left["text"], "as it is: the page sets it as text"


def test_a_page_of_another_run_gets_everything(busy: Serving) -> None:
    with live(busy) as url:
        assert ask(url, run="another", look=10**6, event=10**6)["events"]


def test_ended_jobs_are_kept_with_what_they_did(busy: Serving) -> None:
    with live(busy) as url:
        busy.leave(1, "train", end=True)
        said = until(url, lambda s: s["ended"] and s["ended"][0]["totals"])
        (ended,) = said["ended"]
        assert ended["name"] == "train"
        assert ended["elements"] == 5 * 1448
        assert ended["totals"]["bytes_in"] == 300
        assert ended["spec"]["workers"] == 2


def test_the_page_asks_nothing_of_the_switch(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(poll_interval_s=100))
    serving.join_all()
    with live(serving) as url:
        looks = serving.driver.looks
        for _ in range(20):
            ask(url)
        assert serving.driver.looks == looks


def test_a_switch_that_does_not_answer_is_said_and_its_last_figures_stay(busy: Serving) -> None:
    with live(busy) as url:
        until(url, lambda s: s["now"]["jobs"][0]["results"] == 5)
        busy.driver.look_error = "gone"
        said = until(url, lambda s: not s["healthy"])
        assert said["now"]["jobs"][0]["results"] == 5
        assert said["at_s"] > said["now"]["at_s"]


def test_of_many_ranks_those_of_the_jobs_asked_for_are_told(busy: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RANKS_SHOWN", 1)
    with live(busy) as url:
        assert ask(url)["now"]["jobs"][0]["workers"] is None
        assert len(ask(url, job="train")["now"]["jobs"][0]["workers"]) == 2


def test_a_switch_of_very_many_ranks_records_only_while_a_page_is_open(
    busy: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = busy.server.controller
    assert controller is not None
    monkeypatch.setattr(recorder, "RANKS_ALWAYS", 1)

    async def recorded() -> tuple[int, int]:
        await controller.snapshot()
        one = recorder.Recorder(controller)
        before = len(one.answer(Question())["points"]), len(one.answer(Question())["now"]["jobs"])
        while len(one.answer(Question())["points"]) <= 2:
            await asyncio.sleep(0.05)
        return before

    assert busy.loop.run(recorded(), 30) == (0, 1), "the first to ask is told what there is"


def test_a_switch_of_very_many_ranks_that_nobody_watches_records_nothing(
    busy: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = busy.server.controller
    assert controller is not None
    monkeypatch.setattr(recorder, "RANKS_ALWAYS", 1)
    made: list[object] = []
    monkeypatch.setattr(recorder, "stats_answer", lambda *given: made.append(given))

    async def polled() -> None:
        recorder.Recorder(controller)
        await asyncio.sleep(0.2)

    busy.loop.run(polled(), 5)
    assert not made


# --- events as sentences ---


@pytest.mark.parametrize(
    ("event", "text", "mood"),
    [
        (ev.EpochStarted(3), "epoch 3 began: all ranks are here", Mood.GOOD),
        (ev.EpochEnded(3, ev.Cause.NEW_EPOCH, 1, "rank 1 asked"), "epoch 3 ended: rank 1 asked", Mood.PLAIN),
        (ev.EpochEnded(3, ev.Cause.ALL_LEFT, None, "all left"), "epoch 3 ended: all left", Mood.PLAIN),
        (ev.EpochEnded(3, ev.Cause.MEMBER_FAILED, 1, "rank 1 fell"), "epoch 3 ended: rank 1 fell", Mood.BAD),
        (ev.MemberJoined(2, (0, 1)), "rank 2 joined, and waits for ranks 0-1", Mood.PLAIN),
        (ev.MemberJoined(2, ()), "rank 2 joined", Mood.PLAIN),
        (ev.MemberFailed(1, 9.0, 5, None, 2, "rank 1 is silent"), "rank 1 is silent", Mood.BAD),
        (ev.MemberLeft(0, ""), "rank 0 left", Mood.PLAIN),
        (ev.MemberLeft(0, "done"), "rank 0 left: done", Mood.PLAIN),
        (ev.Stalled(1, 6.0, (3,)), "1 slot waits for rank 3, the oldest for 6.0 s", Mood.BAD),
        (ev.Stalled(0, 0.0, ()), "it goes on: nothing waits any more", Mood.GOOD),
        (ev.JobEnded(ev.Cause.ALL_LEFT, None, "all left"), "all left", Mood.PLAIN),
        (ev.JobEnded(ev.Cause.ENDED_BY_MEMBER, 1, "rank 1 ended it"), "rank 1 ended it", Mood.PLAIN),
        (ev.JobEnded(ev.Cause.EVICTED, None, "evicted"), "evicted", Mood.BAD),
    ],
)
def test_every_event_has_a_sentence(event: ev.Event, text: str, mood: Mood) -> None:
    assert sentence(event) == (text, mood)


# --- who may ask, and how it is served ---


def test_figures_want_the_secret_and_the_page_does_not(busy: Serving) -> None:
    with live(busy, Security(secret="s3cret")) as url:
        assert get(url)[0] == 200
        for headers in ({}, {"Authorization": "Bearer other"}):
            status, _, body = get(f"{url}api/live", **headers)
            assert status == 401
            assert b"train" not in body
        status, _, body = get(f"{url}api/live", Authorization="Bearer s3cret")
        assert status == 200
        assert b"train" in body
        assert b"s3cret" not in body


def test_tokens_are_told_to_nobody(busy: Serving) -> None:
    token = busy.driver.bound[0, 1].token
    with live(busy) as url:
        assert str(token) not in json.dumps(ask(url))


def test_every_file_has_a_policy_that_lets_nothing_in(busy: Serving) -> None:
    with live(busy) as url:
        for path in FOLDER.iterdir():
            status, headers, body = get(url if path.name == "index.html" else f"{url}{path.name}")
            assert (status, body) == (200, path.read_bytes())
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
        assert get(f"{url}../http_server.py")[0] == 404
        assert get(f"{url}elsewhere")[0] == 404
        assert get(f"{url}api/live?look=x")[0] == 400


def test_the_page_fetches_nothing_from_elsewhere_and_reads_nothing_as_html() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path
    assert not re.search(r"<script(?! type=\"module\" src)|\son\w+=|style=", (FOLDER / "index.html").read_text())


def test_where_no_secret_is_wanted_a_name_of_others_is_not_answered(busy: Serving) -> None:
    with live(busy) as url:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example:1"):
            assert get(f"{url}api/live", Host=host)[0] == 421
        for host in ("localhost", "localhost:80", "127.0.0.1:5", "[::1]:5", "[::1]"):
            assert get(f"{url}api/live", Host=host)[0] == 200
    with live(busy, Security(secret="s3cret")) as url:
        headers = {"Authorization": "Bearer s3cret", "Host": "switch.example"}
        assert get(f"{url}api/live", **headers)[0] == 200


def test_the_page_has_the_certificate_of_the_switch(
    busy: Serving, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.issue("web")
    with live(busy, Security(pair.certificate, pair.key)) as url:
        assert url.startswith("https://127.0.0.1:")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.pair.certificate))
        assert get(f"{url}api/live")[0] == 200


def test_the_files_are_in_the_package() -> None:
    names = {path.name for path in Path(FOLDER).iterdir()}
    assert {"index.html", "live.css", "main.js"} <= names


def test_the_page_has_words_for_every_state() -> None:
    words = (FOLDER / "words.js").read_text()
    for enumeration, prefix in ((pb.JobState, "JOB_STATE_"), (pb.MemberState, "MEMBER_STATE_")):
        for name in enumeration.keys():  # noqa: SIM118  # no mapping
            if name != "JOB_STATE_UNSPECIFIED":
                assert f"  {name.removeprefix(prefix).lower()}: [" in words


# --- how it looks ---


def contrast(a: str, b: str) -> float:
    """Of two colours, #rgb or #rrggbb (WCAG 2.2, "contrast ratio")."""

    def luminance(colour: str) -> float:
        digits = colour.removeprefix("#")
        digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_can_be_read_in_both_schemes(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "live.css").read_text(), re.S)
    assert len(blocks) == 2
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", blocks[scheme]))
    for on, words in {
        "page": ("ink", "quiet"),
        "panel": ("ink", "quiet", "a", "b", "warn", "bad", "good"),
        "soft": ("ink",),
        "warn-soft": ("ink", "warn"),
        "bad-soft": ("ink",),
        "a": ("panel",),
        "ink": ("page",),
    }.items():
        for word in words:
            assert contrast(colours[word], colours[on]) >= 4.5, f"{word} on {on}"
