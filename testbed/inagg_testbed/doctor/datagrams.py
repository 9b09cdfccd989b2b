"""Whether datagrams pass to a switch and back: a firewall may let the control service's TCP pass, and not UDP.

Data planes answer nobody whom they do not know. So this joins a job of its own as its only rank, sends one contribution
to each shard, as large as a worker would, and ends the job.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from inagg_host.config import Config, ConfigError
from inagg_link.addresses import Address
from inagg_link.base import Batch
from inagg_link.udp import UdpLink
from inagg_switch.addresses import join_address
from inagg_wire.errors import AdmissionError, WireError
from inagg_wire.header import Header, parse
from inagg_wire.layout import LANE_MULTIPLE, Kind, Op, datagram_bytes, payload_bytes

from .finding import Finding, Verdict

if TYPE_CHECKING:
    from inagg_host.core import Epoch

JOB: Final = "doctor/"
JOIN_S: Final = 10.0
TRIES: Final = 3
ANSWER_S: Final = 0.3
FIREWALL: Final = "does a firewall let UDP pass, both ways?"


@dataclass(slots=True)
class Trial:
    """Outcome of a trial. ``datagram_bytes``: the largest UDP payload that a worker sends or gets; None: nobody has
    said, as there was no job."""

    datagram_bytes: int | None = None
    found: list[Finding] = field(default_factory=list)


def try_datagrams(address: str, environ: Mapping[str, str]) -> Trial:
    """Try the switch whose control service is at ``address``, as a worker with these variables would reach it."""
    # Compiled code stands behind it, which may be what is wrong here.
    from inagg_host.membership.calls import SessionError
    from inagg_host.membership.session import Session

    name = f"datagrams to {address}"
    try:
        config = Config.from_environment(
            environ, switch=address, rank=0, workers=1, job=f"{JOB}{secrets.token_hex(4)}", window=1,
            reconnect_s=0.1, join_timeout_s=JOIN_S,
        )  # fmt: skip
        session = Session(config, lambda loss: None, lambda blocks: None, lambda: None, lambda: None)
    except (ConfigError, AdmissionError) as error:
        return Trial(found=[Finding(name, Verdict.WRONG, str(error), "env | grep INAGG_")])
    try:
        with UdpLink((session.local_host(), 0)) as link:
            epoch = session.join(lambda: link.address)
            return _exchange(name, link, epoch)
    except (SessionError, ConfigError) as error:
        return Trial(found=[Finding(name, Verdict.NOTE, f"not tried: {error}")])
    except OSError as error:
        found = f"none can be sent: {error.strerror or error}"
        return Trial(found=[Finding(name, Verdict.WRONG, found, "ip address; INAGG_HOST=ADDRESS says from which")])
    finally:
        session.close("it was to see whether datagrams pass", end=True)


def _exchange(name: str, link: UdpLink, epoch: Epoch) -> Trial:
    fmt = epoch.format
    encoding, result = fmt.encoding(Op.SUM), fmt.result_encoding(Op.SUM, epoch.workers)
    sent, got = datagram_bytes(encoding, epoch.lanes), datagram_bytes(result, epoch.lanes)
    trial = Trial(max(sent, got))

    def contributions(lanes: int, token: int) -> dict[Address, bytes]:
        return {
            shard.address: Header(
                Kind.CONTRIBUTION, Op.SUM, encoding, lanes, epoch.job, token,
                shard.lease.slot(shard.resume_block), shard.lease.generation(shard.resume_block),
            ).pack() + bytes(payload_bytes(encoding, lanes))
            for shard in epoch.shards
        }  # fmt: skip

    began_s = time.monotonic()
    silent = _unanswered(link, epoch.job, contributions(epoch.lanes, epoch.token))
    if not silent:
        took_ms = 1e3 * (time.monotonic() - began_s)
        shards = _names([shard.address for shard in epoch.shards])
        found = f"{shards}: datagrams of {trial.datagram_bytes} bytes pass, both ways, in {took_ms:.1f} ms"
        trial.found.append(Finding(name, Verdict.OK, found))
        return trial
    # Of another epoch: it is refused by a notice, and changes nothing.
    small = contributions(max(LANE_MULTIPLE, fmt.min_lanes), epoch.token ^ 1 or 2)
    dead = _unanswered(link, epoch.job, {shard: small[shard] for shard in silent})
    if dead:
        ports = " and ".join(f"UDP {port}" for _, port in dead)
        do = f"let {ports} pass, to the switch and back: sudo nft list ruleset, here and there"
        trial.found.append(Finding(name, Verdict.WRONG, f"{_names(dead)} gives no answer: {FIREWALL}", do))
    if cut := [shard for shard in silent if shard not in dead]:
        found = f"{_names(cut)} answers small datagrams, and none of {trial.datagram_bytes} bytes: they are too long"
        do = "compare the MTUs on the way (ip link, here and there), or start the switch with fewer --datagram-bytes"
        trial.found.append(Finding(name, Verdict.WRONG, found, do))
    return trial


def _unanswered(link: UdpLink, job: int, datagrams: Mapping[Address, bytes]) -> list[Address]:
    """Send datagrams, up to `TRIES` times; return the addresses that have answered none."""
    silent = dict(datagrams)
    for _ in range(TRIES):
        for shard, data in silent.items():
            link.send(Batch(np.frombuffer(data, np.uint8), len(data), shard))
        until_s = time.monotonic() + ANSWER_S
        while silent and (left_s := until_s - time.monotonic()) > 0:
            for batch in link.receive(left_s):
                if batch.peer in silent and any(_is_of(job, datagram.tobytes()) for datagram in batch.datagrams):
                    del silent[batch.peer]
        if not silent:
            break
    return list(silent)


def _is_of(job: int, data: bytes) -> bool:
    """Whether a datagram is an answer in a job."""
    try:
        header = parse(data).header
    except WireError:
        return False
    return header.job == job and header.kind is not Kind.CONTRIBUTION


def _names(addresses: list[Address]) -> str:
    return " and ".join(f"UDP {join_address(host, port)}" for host, port in addresses)
