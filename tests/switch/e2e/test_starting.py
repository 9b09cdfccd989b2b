"""How a switch starts, and what it says when it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap
from tests.switch.e2e.running import Run, Switch, gradients, inagg

from inagg_switch.control.client import ControlClient
from inagg_wire.dissect.scapy_layer import Inagg, bind, unbind
from inagg_wire.layout import Kind

FREE = ("--listen", "127.0.0.1:0")


def test_a_port_in_use_is_named_with_what_to_do(good: Switch) -> None:
    shard = good.ready["shards"][0]
    hints = {
        "--listen": ("--listen", good.address, "--data", "127.0.0.1:0"),
        "--data": (*FREE, "--data", f"127.0.0.1:{shard['port']}"),
        "--metrics": (*FREE, "--metrics", good.ready["metrics"].split("/")[2]),
    }
    with ThreadPoolExecutor() as pool:
        ends = {hint: pool.submit(inagg, "switch", *options) for hint, options in hints.items()}
    for hint, end in ends.items():
        said = end.result().stderr
        assert end.result().returncode == 1
        assert "Traceback" not in said
        assert said.splitlines()[-1].startswith("Error: ")
        assert f"choose another address with {hint}" in said


def test_the_first_lines_say_what_runs_and_how_to_join(start: Callable[..., Switch]) -> None:
    switch = start("--log-format", "human", "--shards", "2", "--loss", "0.1", "--fault-seed", "9")
    said = switch.out_file.read_text()
    for word in (
        switch.address,
        "2 shards of 8192 slots",
        "13064 lanes",
        "UDP offload",
        f"INAGG_SWITCH={switch.address}",
        "Ctrl-C",
    ):
        assert word in said
    assert all(str(shard["port"]) in said for shard in switch.ready["shards"])
    warning = next(line for line in switch.log_file.read_text().splitlines() if "faults_injected" in line)
    assert "--fault-seed 9" in warning
    assert "ON PURPOSE" in warning


def test_without_offload_the_sums_are_the_same(
    start: Callable[..., Switch], good: Switch, client: ControlClient
) -> None:
    switch = start("--no-offload")
    assert not switch.ready["offload"]
    arrays = gradients(3, [40_000, 7], 1)
    options = {"job": "same", "seed": 1, "format": "nat8"}
    for a, b in zip(
        Run(switch.address, arrays, **options).results()[0],
        Run(good.address, arrays, **options).results()[0],
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert client.stats().shards[0].slots_leased == 0


def test_a_capture_can_be_read_with_scapy(start: Callable[..., Switch], tmp_path: object) -> None:
    path = f"{tmp_path}/run.pcap"
    switch = start("--capture", path)
    Run(switch.address, gradients(2, [5000], 1), job="seen").results()
    with switch.client() as client:
        shard = client.stats().shards[0]
    switch.signal()
    assert switch.ended() == 0
    port = switch.ready["shards"][0]["port"]
    bind(port)
    try:
        packets = rdpcap(path)
    finally:
        unbind(port)
    assert len(packets) == shard.datagrams_in + shard.datagrams_out
    kinds = [packet[Inagg].kind for packet in packets]
    assert kinds.count(Kind.CONTRIBUTION) == shard.datagrams_in
    assert all(packet[Inagg].wrong() is None for packet in packets)
    assert {packet[IP].src for packet in packets} == {"127.0.0.1"}
    assert all(port in (packet[UDP].sport, packet[UDP].dport) for packet in packets)


@pytest.mark.parametrize("options", [("--listen", "0.0.0.0:0"), ("--metrics", "0.0.0.0:0", *FREE)])
def test_other_machines_are_served_without_tls_only_if_asked_for(options: tuple[str, ...]) -> None:
    ended = inagg("switch", *options)
    assert ended.returncode == 2
    assert "--insecure" in ended.stderr


def test_the_ready_file_says_where_it_serves(good: Switch) -> None:
    assert json.loads(good.ready_file.read_text()) == good.ready
    assert good.ready["pid"] == good.process.pid
    assert good.ready["slots"] == 8192
