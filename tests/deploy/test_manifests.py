"""The Kubernetes manifests fit the schemas of what they make, and run commands that exist.

The schemas are those of JobSet's and Kubeflow Trainer's CustomResourceDefinitions, of August 2026.
"""

from __future__ import annotations

import copy
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from inagg.cli import COMMANDS, make_root
from inagg_switch.cli.shard_keeper import SILENT_TICKS, TICK_S
from inagg_switch.service.driver_threads import LOOK_S

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
SCHEMAS = Path(__file__).parent / "schemas"
MANIFESTS = {"jobset.yaml": "jobset.json", "cluster-training-runtime.yaml": "clustertrainingruntime.json"}
every_manifest = pytest.mark.parametrize("name", MANIFESTS)


def strict(schema: Any) -> Any:
    """Unknown fields are errors, as for `kubectl apply --validate=strict`."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = strict(json.loads((SCHEMAS / MANIFESTS[name]).read_text()))
    schema["properties"]["metadata"] = {"type": "object"}  # of every Kubernetes object, and not in the definition
    return jsonschema.Draft202012Validator(schema)


def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((KUBERNETES / name).read_text())
    return loaded


def job_set(name: str) -> dict[str, Any]:
    """The specification of the JobSet that a manifest makes."""
    spec: dict[str, Any] = manifest(name)["spec"]
    found: dict[str, Any] = spec["template"]["spec"] if "template" in spec else spec
    return found


def readme_blocks() -> list[dict[str, Any]]:
    """What the README adds to the manifests."""
    text = (KUBERNETES.parent / "README.md").read_text()
    blocks = re.findall(r"^  ```text\n(.*?)^  ```", text, re.M | re.S)
    return [yaml.safe_load(textwrap.dedent(block)) for block in blocks]


def containers(name: str) -> Iterator[dict[str, Any]]:
    for job in job_set(name)["replicatedJobs"]:
        yield from job["template"]["spec"]["template"]["spec"]["containers"]


@every_manifest
def test_it_fits_its_schema(name: str) -> None:
    validator(name).validate(manifest(name))


@every_manifest
def test_it_fits_its_schema_with_the_secrets_of_the_readme(name: str) -> None:
    pod_has, switch_has, workers_have = readme_blocks()
    made = copy.deepcopy(manifest(name))
    spec = made["spec"]["template"]["spec"] if "template" in made["spec"] else made["spec"]
    switch, workers = (job["template"]["spec"]["template"]["spec"] for job in spec["replicatedJobs"])
    switch.update(pod_has)
    switch["containers"][0].update(switch_has)
    workers["containers"][0]["env"] += workers_have["env"]
    validator(name).validate(made)
    (volume,), (mount,) = pod_has["volumes"], switch_has["volumeMounts"]
    assert mount["name"] == volume["name"]


@every_manifest
def test_the_schema_refuses_a_field_that_nobody_knows_and_a_wrong_type(name: str) -> None:
    for path, value in ((("replicatedJobs", 0, "replicas"), "one"), (("replicatedJobs", 0, "replica"), 1)):
        broken = copy.deepcopy(manifest(name))
        node: Any = broken["spec"]["template"]["spec"] if "template" in broken["spec"] else broken["spec"]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        assert not validator(name).is_valid(broken)


@every_manifest
def test_the_switch_takes_its_options_and_its_ports_are_those_that_it_has(name: str) -> None:
    (switch,) = [container for container in containers(name) if container["name"] == "switch"]
    assert switch["command"][:2] == ["inagg", "switch"]
    command = make_root(COMMANDS).get_command(None, "switch")  # type: ignore[arg-type]
    assert command is not None
    given = command.make_context("switch", switch["command"][2:]).params
    ports = {port["name"]: (port["containerPort"], port["protocol"]) for port in switch["ports"]}
    assert given["listen"] == f"0.0.0.0:{ports['control'][0]}"
    assert given["metrics"] == f"0.0.0.0:{ports['metrics'][0]}"
    assert ports["data"] == (47101, "UDP")
    for probe in ("readinessProbe", "startupProbe", "livenessProbe"):
        assert switch[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}


@every_manifest
def test_the_switch_has_time_to_start_a_shard_again_before_its_pod_is(name: str) -> None:
    (switch,) = [container for container in containers(name) if container["name"] == "switch"]
    probe = switch["livenessProbe"]
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > SILENT_TICKS * TICK_S + LOOK_S


@every_manifest
def test_the_switch_may_run_in_a_namespace_that_wants_restricted_pods(name: str) -> None:
    """The four settings of the Pod Security Standard "restricted". The image's user must be a number for the first:
    the kubelet cannot tell of a name that it is not root's."""
    (switch,) = [container for container in containers(name) if container["name"] == "switch"]
    assert switch["securityContext"] == {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    lines = (KUBERNETES.parent / "Containerfile").read_text().splitlines()
    assert int([line for line in lines if line.startswith("USER ")][-1].removeprefix("USER ")) > 0


@every_manifest
def test_workers_wait_for_the_switch_and_the_set_ends_with_them(name: str) -> None:
    spec = job_set(name)
    switch, workers = spec["replicatedJobs"]
    assert workers["dependsOn"] == [{"name": switch["name"], "status": "Ready"}]
    assert spec["successPolicy"]["targetReplicatedJobs"] == [workers["name"]]
    (address,) = [
        variable["value"]
        for container in containers(name)
        for variable in container.get("env", [])
        if variable["name"] == "INAGG_SWITCH"
    ]
    assert f"-{switch['name']}-0-0." in address
