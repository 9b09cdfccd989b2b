"""`inagg doctor`: whether datagrams pass to a switch and back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from inagg_host.core import Epoch
from inagg_host.membership.session import Session
from inagg_link.base import Batch
from inagg_link.udp import UdpLink
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlClient
from inagg_testbed.doctor.datagrams import Trial, try_datagrams
from inagg_testbed.doctor.finding import Finding, Verdict
from inagg_testbed.switch_process import SwitchProcess


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with SwitchProcess("--shards", "2") as switch:
        yield switch


def tried(switch: SwitchProcess) -> tuple[Trial, Finding]:
    trial = try_datagrams(switch.control, {})
    (finding,) = trial.found
    return trial, finding


def test_a_switch_answers_datagrams_as_large_as_a_worker_sends_from_each_shard(switch: SwitchProcess) -> None:
    trial, found = tried(switch)
    assert found.verdict is Verdict.OK
    assert found.found.count("UDP 127.0.0.1:") == 2
    assert f"datagrams of {trial.datagram_bytes} bytes pass, both ways" in found.found
    assert trial.datagram_bytes is not None
    assert trial.datagram_bytes > 13_000, "on loopback"


def test_no_job_is_left(switch: SwitchProcess) -> None:
    tried(switch)
    with ControlClient(switch.control, Access()) as client:
        assert not client.list().jobs


def test_a_port_of_which_nothing_comes_is_wrong(switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard's is as it should be."""
    join = Session.join
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()

        def elsewhere(*arguments: Any, **options: Any) -> Epoch:
            epoch = join(*arguments, **options)
            return replace(epoch, shards=(epoch.shards[0], replace(epoch.shards[1], address=address)))

        monkeypatch.setattr(Session, "join", elsewhere)
        _, found = tried(switch)
    host, port = address
    assert found.verdict is Verdict.WRONG
    assert found.found == f"UDP {host}:{port} gives no answer: does a firewall let UDP pass, both ways?"
    assert f"let UDP {port} pass" in found.do


def test_where_only_small_datagrams_pass_these_are_too_long(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = UdpLink.send

    def send_small(link: UdpLink, batch: Batch) -> int:
        return send(link, batch) if batch.size < 100 else len(batch)

    monkeypatch.setattr(UdpLink, "send", send_small)
    trial, found = tried(switch)
    assert found.verdict is Verdict.WRONG
    assert f"answers small datagrams, and none of {trial.datagram_bytes} bytes" in found.found
    assert "MTU" in found.do


def test_a_switch_that_takes_no_jobs_now_is_not_tried(switch: SwitchProcess) -> None:
    with ControlClient(switch.control, Access()) as client:
        client.drain()
        try:
            trial, found = tried(switch)
        finally:
            client.drain(off=True)
    assert (trial.datagram_bytes, found.verdict) == (None, Verdict.NOTE)
    assert found.found.startswith("not tried: ")


def test_a_variable_that_no_worker_could_use_is_wrong(switch: SwitchProcess) -> None:
    (found,) = try_datagrams(switch.control, {"INAGG_FORMAT": "float"}).found
    assert found.verdict is Verdict.WRONG
    assert found.do
