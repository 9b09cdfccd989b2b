"""The Grafana dashboard asks for metrics and labels that there are, and has a place for every panel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inagg_switch.control.states import JobState, MemberState
from inagg_switch.service.metric_names import METRICS

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8")
)
SCRAPE = {"instance"}
"""Labels that Prometheus adds."""
LABELS = {
    **{f"{name}_total" if kind == "counter" else name: set(labels) for name, (kind, _, labels) in METRICS.items()},
    "inagg_control_call_seconds_bucket": {"call", "code", "le"},
}
LEFT_OUT = {
    "inagg_shard_received_datagrams",
    "inagg_shard_sent_datagrams",
    "inagg_shard_notices",
    "inagg_shard_not_captured_datagrams",
    "inagg_job_contributions",
    "inagg_job_invalid_codes",
    "inagg_job_slots_leased",
    "inagg_switch_draining",
    "inagg_switch_snapshot_age_seconds",
    "inagg_switch_refused_callers",
    "inagg_switch_refused_tls_connections",
}
"""What has no panel: it is another's in other units, or for alerts and for those who look for a mistake."""
WORDS = {"sum", "max", "by", "rate", "increase", "histogram_quantile", "label_values"}
VALUES = {
    ("inagg_jobs", "state"): {state.name.lower() for state in JobState},
    ("inagg_job_members", "state"): {*(state.name.lower() for state in MemberState), "missing"},
    ("inagg_control_call_seconds_bucket", "call"): {"Join"},
}
SELECTOR = re.compile(r"\b(inagg_\w+)\s*(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


def targets() -> Iterator[tuple[str, str]]:
    """Expressions and the legends of what they give."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


every_target = pytest.mark.parametrize(("expression", "legend"), list(targets()))


@every_target
def test_every_metric_and_label_of_an_expression_is_there(expression: str, legend: str) -> None:
    found = SELECTOR.findall(expression)
    assert found
    for name, matchers in found:
        assert name in LABELS
        asked = dict(MATCHER.findall(matchers))
        assert MATCHER.sub("", matchers).strip(", ") == "", "all of it was read"
        assert asked.keys() <= LABELS[name] | SCRAPE
        assert "instance" in asked, "a dashboard of several switches shows the chosen ones"
        for label, value in asked.items():
            if not value.startswith("$"):
                assert value in VALUES[name, label]


@every_target
def test_what_is_grouped_and_named_is_a_label_of_the_metric(expression: str, legend: str) -> None:
    labels = set.union(*(LABELS[name] for name, _ in SELECTOR.findall(expression))) | SCRAPE
    groups = [set(re.split(r",\s*", group)) for group in re.findall(r"\bby \(([^)]*)\)", expression)]
    for group in groups:
        assert group <= labels
    named = set(re.findall(r"\{\{(\w+)\}\}", legend))
    aggregated = re.match(r"^(?:8 \* )?(?:sum|max)\b", expression)
    assert named <= (groups[0] if groups else set() if aggregated else labels)


@every_target
def test_an_expression_uses_counters_by_their_rates_and_nothing_unknown(expression: str, legend: str) -> None:
    for name, _ in SELECTOR.findall(expression):
        rated = bool(re.search(rf"\b(?:rate|increase)\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expression))
        assert rated == name.endswith(("_total", "_bucket"))
    rest = re.sub(r"\bby \([^)]*\)", "by", SELECTOR.sub("", expression)).replace("$__rate_interval", "")
    assert set(re.findall(r"[a-z_]\w+", rest)) <= WORDS
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)


def test_every_metric_has_a_panel_or_is_left_out_on_purpose() -> None:
    shown = {name.removesuffix("_total") for expression, _ in targets() for name, _ in SELECTOR.findall(expression)}
    assert METRICS.keys() - shown == LEFT_OUT


def test_variables_ask_for_metrics_and_labels_that_are_there() -> None:
    queries = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        (name, _), label = SELECTOR.findall(query)[0], re.split(r",\s*", query.rstrip(")"))[-1]
        assert label in LABELS[name] | SCRAPE
    used = set(re.findall(r"\$(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used <= {one["name"] for one in DASHBOARD["templating"]["list"]}


def test_panels_fit_the_page_and_overlap_nowhere() -> None:
    taken: set[tuple[int, int]] = set()
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
