"""The reference of the metrics: names, kinds, labels and help texts, as `inagg switch --metrics` serves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inagg_switch.control.states import JobState, MemberState
from inagg_switch.service.metric_names import ENDS, JOB_METRICS, SHARD_METRICS, SWITCH_METRICS, Help

HEAD: Final = """\
# Metrics

What `inagg switch --metrics` serves to Prometheus, with the names that queries have. How to scrape them, and the alert
rules and the dashboard that use them, are in [operators](../operators.md#metrics). A counter begins at 0 with the
switch, or with the job that it is of. All counters are read every `--poll-interval` (1 s);
`inagg_switch_snapshot_age_seconds` says how long ago that was. Names that begin with `process_` and `python_` are those
of Prometheus's own client, for the control plane's process.
"""
LABELS: Final = """
## Labels

| label | values |
|---|---|
"""
OTHERS: Final[Help] = {
    "inagg_control_call_seconds": (
        "histogram",
        "How long calls of the control service took: Join with its wait for others, a stream until it is open.",
        ("call", "code"),
    ),
    "inagg_build_info": ("gauge", "1; the labels say what runs.", ("version", "driver")),
    "inagg_tls_certificate_expiry_seconds": (
        "gauge",
        "When the switch's certificate expires, in seconds since 1970. Only with TLS.",
        (),
    ),
}
"""What `metric_names` does not have: `controller` and `metrics_server` make these."""

PARTS: Final = (
    ("The switch", SWITCH_METRICS | OTHERS),
    ("Shards", SHARD_METRICS),
    ("Jobs", JOB_METRICS),
)


def name_in_queries(name: str, kind: str) -> str:
    """As Prometheus has it: counters end in `_total`, a histogram has three series."""
    return {"counter": f"{name}_total", "histogram": f"{name}_bucket"}.get(kind, name)


def page() -> str:
    """The page, as Markdown."""
    return HEAD + "".join(_parts()) + LABELS + "".join(_label_rows())


def _parts() -> Iterator[str]:
    for title, metrics in PARTS:
        yield f"\n## {title}\n\n| name | kind | labels | meaning |\n|---|---|---|---|\n"
        for name, (kind, text, labels) in metrics.items():
            shown = ", ".join(f"`{label}`" for label in labels)
            yield f"| `{name_in_queries(name, kind)}` | {kind} | {shown} | {text} |\n"


def _label_rows() -> Iterator[str]:
    jobs, members = (", ".join(f"`{state.name.lower()}`" for state in kind) for kind in (JobState, MemberState))
    causes = ", ".join(f"`{cause.name.lower()}`" for cause in ENDS)
    meanings = {
        "job": "The training job's name.",
        "rank": "Rank in its job, from 0.",
        "shard": "Number of the shard, from 0.",
        "switch": "Name of a switch below the root; absent for the root, or where there is one switch.",
        "state": f"Of `inagg_jobs`: {jobs}. Of `inagg_job_members`: {members}, `missing`.",
        "cause": f"Why a job ended: {causes}.",
        "reason": "Why a datagram was dropped: a name of [the packet format](../protocol.md#validation).",
        "fault": "What was done to a datagram on purpose.",
        "call": "Call of the [control service](control.md); `other`: none of it, by somebody without the secret.",
        "code": "gRPC status code of the reply; `UNAUTHENTICATED`: the caller did not know the secret.",
        "version": "Version of inagg.",
        "driver": "What adds up: the software switch, bmv2 or Tofino.",
    }
    for label, text in meanings.items():
        yield f"| `{label}` | {text} |\n"
