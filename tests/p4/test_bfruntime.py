"""The Tofino driver against a server written from BF Runtime's interface. Nobody has tried it on a Tofino."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb
from inagg_switch.binding import Binding
from inagg_switch.driver import DriverError
from inagg_switch.p4 import grpc_stream as stream
from inagg_switch.p4.builds import build
from inagg_switch.p4.grpc_stream import WriteFailed
from inagg_switch.p4.network import Host, Network
from inagg_switch.p4.p4_driver import P4Driver
from inagg_switch.p4.plane import Delete, Entry, Insert
from inagg_switch.p4.program import TOFINO
from inagg_switch.p4.tofino.bfruntime_client import Client
from inagg_switch.p4.tofino.tofino_plane import TofinoPlane, tofino_driver
from inagg_wire.errors import Reason
from inagg_wire.formats import FORMATS
from inagg_wire.slots import Lease

from .bfruntime_server import ALREADY_EXISTS, BIND, MEMBERS, PROGRAM, TAGS, BfRuntimeServer
from .p4runtime_server import P4RuntimeServer

NETWORK = Network("10.77.0.254", 0x02000A4D00FE, tuple(Host(f"10.77.0.{n}", 0x02000A4D0000 + n, 4 * n) for n in (1, 2)))
PASSES = replace(NETWORK, loopback=((68,), (64, 65), (196,)))
"""With ports for four passes, of which the last one is in a pipe of its own."""


def make_binding(token: int = 0xC0FFEE, lanes: int = 32, workers: int = 2) -> Binding:
    addresses = tuple((f"10.77.0.{n}", 5000 + n) for n in range(1, workers + 1))
    return Binding(7, token, FORMATS["nat8"], lanes, Lease(64, 16), 0x5EED, addresses)


@pytest.fixture
def server() -> Iterator[BfRuntimeServer]:
    with BfRuntimeServer() as running:
        yield running


@pytest.fixture
def driver(server: BfRuntimeServer) -> Iterator[P4Driver]:
    made = tofino_driver(NETWORK, server.target)
    yield made
    made.close()


def numbers(entry: pb.TableEntry) -> list[int]:
    """The data of an entry, in the order of their numbers."""
    fields = sorted(entry.data.fields, key=lambda field: field.field_id)
    return [int.from_bytes(field.stream, "big") for field in fields]


def test_a_new_switch_gets_its_address_its_hosts_and_a_group_of_all_ports(
    driver: P4Driver, server: BfRuntimeServer
) -> None:
    own = {tuple(int.from_bytes(f.ternary.value, "big") for f in e.key.fields[:3]): e for e in server.entries("local")}
    assert {key: numbers(entry) for key, entry in own.items()} == {
        (0x0A4D00FE, 47101, 0): [0x02000A4D00FE, 2],
        (0x0A4D00FE, 0, 1): [0x02000A4D00FE, 2],  # fragments
        (0x0A4D00FE, 0, 0): [0x02000A4D00FE, 1],
    }
    priorities = {key: int.from_bytes(entry.key.fields[3].exact.value, "big") for key, entry in own.items()}
    other = priorities.pop((0x0A4D00FE, 0, 0))
    assert max(priorities.values()) < other  # the smallest number wins
    assert [numbers(entry) for entry in server.entries("forward")] == [[4], [8]]
    assert [exact(entry) for entry in server.entries("to_switch")] == [[0x02000A4D00FE]]
    assert server.entries("onward") == server.entries("$PORT_METADATA") == []
    (node,) = server.entries("$pre.node")
    assert [list(field.int_arr_val.val) for field in node.data.fields[1:]] == [[], [4, 8]]


def exact(entry: pb.TableEntry) -> list[int]:
    """The key of an entry of an exact table."""
    return [int.from_bytes(field.exact.value, "big") for field in entry.key.fields]


def test_datagrams_go_from_pass_to_pass_by_the_ports_of_the_network(server: BfRuntimeServer) -> None:
    with closing(tofino_driver(PASSES, server.target)) as driver:
        assert [exact(entry) + numbers(entry) for entry in server.entries("$PORT_METADATA")] == [
            [port, 1] for port in (68, 64, 65, 196)
        ]
        ways = {tuple(exact(entry)): numbers(entry) for entry in server.entries("onward")}
        assert len(ways) == 6 * 16
        # (what the pass is and its chunk, low bits of the slot): the same of the next pass, its port
        assert [ways[0x43, slot] for slot in (0, 1, 15)] == [[0x82, 68]] * 3
        assert [ways[place, slot] for place in (0x42, 0x82) for slot in (0, 1, 2)] == [
            [0x81, 64],
            [0x81, 65],
            [0x81, 64],
        ] * 2
        assert [ways[place, 7] for place in (0x41, 0x81)] == [[0x80, 196]] * 2
        assert (driver.limits.lanes, driver.limits.slots) == (128, 16384 // 4)


@pytest.mark.parametrize(
    ("loopback", "says"),
    [
        (((68,),) * 4, "has 4 lists of ports, one for each pass after the first; this program has up to 3"),
        (((68,), (69, 130)), r"switch.loopback\[1\] .* ports 69, 130 are in several pipes"),
    ],
)
def test_ports_that_cannot_serve_as_loopback_are_refused(
    server: BfRuntimeServer, loopback: tuple[tuple[int, ...], ...], says: str
) -> None:
    with pytest.raises(DriverError, match=says):
        tofino_driver(replace(NETWORK, loopback=loopback), server.target)


def test_a_job_of_several_passes_is_bound_and_cleared_in_each(server: BfRuntimeServer) -> None:
    with closing(tofino_driver(PASSES, server.target)) as driver:
        driver.bind(0, make_binding(lanes=96))
        bound = [entry for entry in server.entries("binding") if entry.data.action_id == BIND]
        # ingress_port and its mask, place and its mask
        assert sorted(
            tuple(int.from_bytes(part, "big") for n in (1, 9) for part in (f[n].ternary.value, f[n].ternary.mask))
            for entry in bound
            for f in [entry.key.fields]
            if numbers(entry)[:4] == [0, 0, 0x80000002, 1]
        ) == [(0, 0, 0x80, 0x80), (4, 0x1FF, 0x42, 0xFF)]
        slots = sorted(exact(entry)[0] for entry in server.entries("tags"))
        assert slots == [first + slot for first in (0, 4096, 8192) for slot in range(64, 80)]


@pytest.mark.parametrize("as_the_sde", [True, False], ids=["in the status", "in the answer"])
def test_what_a_write_could_not_do_is_told_by_its_place(server: BfRuntimeServer, as_the_sde: bool) -> None:
    server.fails_as_the_sde = as_the_sde
    with closing(TofinoPlane(server.target)) as plane:
        entry = next(item for item in TOFINO.base_entries(NETWORK) if isinstance(item, Entry))
        plane.write([Insert(entry)])
        with pytest.raises(WriteFailed, match=r"refused Write: update 0: .*there is such an entry") as caught:
            plane.write([Insert(entry)])
        assert [code for _, code, _ in caught.value.failures] == [ALREADY_EXISTS]
        plane.write([Delete(entry)])
        plane.write([Delete(entry)])  # what is gone is gone


def test_a_binding_says_who_the_others_are_and_how_to_read_codes(driver: P4Driver, server: BfRuntimeServer) -> None:
    driver.bind(0, make_binding())
    bind = [numbers(entry) for entry in server.entries("binding") if entry.data.action_id == BIND]
    # worker, rank, others, op, mode, seed, group, port; for two workers c = 1
    assert sorted(bind) == [
        [0, 0, 0x80000002, 1, 1, 0x5EED, 2, 4],
        [0, 0, 0x80000002, 2, 7, 0x5EED, 2, 4],
        [1, 1, 0x80000001, 1, 1, 0x5EED, 2, 8],
        [1, 1, 0x80000001, 2, 7, 0x5EED, 2, 8],
    ]
    (group,) = (entry for entry in server.entries("$pre.mgid") if len(entry.data.fields[0].int_arr_val.val) == 2)
    assert list(group.data.fields[0].int_arr_val.val) == [2 << 16 | 1, 2 << 16 | 2]


def test_slots_are_cleared_after_the_old_epoch_and_before_the_new_one(
    driver: P4Driver, server: BfRuntimeServer
) -> None:
    driver.bind(0, make_binding(token=1))
    server.log.clear()
    driver.bind(0, replace(make_binding(token=2), resume_block=3 * 16 + 5))
    steps = [(kind, name.rsplit(".", 1)[-1]) for kind, name in server.log]
    clears = [place for place, step in enumerate(steps) if step == (pb.Update.MODIFY, "tags")]
    assert len(clears) == 16
    assert steps.index((pb.Update.INSERT, "binding")) > clears[-1]
    assert max(place for place, (kind, _) in enumerate(steps) if kind == pb.Update.DELETE) < clears[0]
    tags = {int.from_bytes(entry.key.fields[0].exact.value, "big"): numbers(entry) for entry in server.entries("tags")}
    # the generation before the first one that comes: of block 53, which is slot 69, the fourth
    assert tags == {slot: [4 if slot < 69 else 3] for slot in range(64, 80)}
    assert [numbers(entry) for entry in server.entries("members")] == [[0, 0]] * 16


def test_unbinding_leaves_nothing_of_the_job(driver: P4Driver, server: BfRuntimeServer) -> None:
    before = {name: len(found) for name, found in server.tables.items()}
    driver.bind(0, make_binding())
    driver.unbind(0, 7)
    after = {name: len(found) for name, found in server.tables.items()}
    assert after == before | {TAGS: 16, MEMBERS: 16}  # registers are always there


def test_outcomes_become_the_counters_of_the_job(driver: P4Driver, server: BfRuntimeServer) -> None:
    driver.bind(0, make_binding())
    frame = 42 + 24 + 32
    for worker, outcome, packets in ((0, 4, 5), (1, 5, 5), (1, 3, 2), (0, 2, 1), (0, 1, 3), (1, 0, 1)):
        server.counts["outcomes", 8 * worker + outcome] = (packets, packets * frame)
    # what the last pass answered: 1 to one worker, 2 to all
    for worker, answered, packets in ((1, 2, 5), (1, 1, 2)):
        server.counts["answers", 4 * worker + answered] = (packets, packets * frame)
    server.counts["not_ours", 0] = (6, 6 * frame)
    server.counts["refused", int(Reason.WRONG_OP)] = (1, frame)
    server.counts["refused", int(Reason.STALE)] = (3, 3 * frame)
    server.counts["datagrams_in", 0] = (17, 17 * frame)
    counters = driver.counters(0)
    job = counters.jobs[7]
    assert (job.contributions, job.duplicates, job.resends, job.stale) == ([5, 5], [1, 0], [0, 2], [3, 0])
    assert (job.results, job.bytes_in) == (5, [9 * 56, 8 * 56])
    assert (counters.datagrams_in, counters.bytes_in) == (17, 17 * 56)
    assert counters.drops == {Reason.STALE: 3, Reason.WRONG_OP: 1}
    assert counters.notices == 1
    assert counters.link_drops == {"not_ours": 6}
    assert (counters.datagrams_out, counters.bytes_out) == (5 * 2 + 2 + 1, 12 * 56 + 24)


def test_a_job_with_another_number_of_lanes_is_refused(driver: P4Driver, server: BfRuntimeServer) -> None:
    server.log.clear()
    with pytest.raises(DriverError, match="a multiple of 32"):
        driver.bind(0, make_binding(lanes=8))
    with pytest.raises(DriverError, match="64 lanes: the program inagg-nat8-32 has 32"):
        driver.bind(0, make_binding(lanes=64))
    assert server.log == []


def test_a_switch_that_runs_another_program_is_told(server: BfRuntimeServer) -> None:
    with pytest.raises(DriverError, match=r"runs no program 'other' \(it runs: inagg\)"):
        Client(server.target, "other")


def test_a_second_control_plane_is_told_that_there_is_one_and_removes_nothing(
    driver: P4Driver, server: BfRuntimeServer
) -> None:
    driver.bind(0, make_binding())
    before = {name: len(found) for name, found in server.tables.items()}
    with pytest.raises(DriverError, match="does not take client 0: the client id is in use"):
        tofino_driver(NETWORK, server.target)
    assert {name: len(found) for name, found in server.tables.items()} == before


def test_what_a_program_serves_is_what_its_tables_have_room_for(driver: P4Driver) -> None:
    tables = {table["name"]: table for table in PROGRAM["tables"]}
    lanes = sum(name.endswith(".acc") for name in tables)
    assert (driver.build.name, driver.limits.lanes) == (f"inagg-nat8-{lanes}", lanes)
    assert driver.shards[0].slots == tables[TAGS]["size"]
    assert (driver.build.jobs, driver.limits.workers) == (32, 31)


@pytest.mark.parametrize(("network", "more"), [(NETWORK, "up to 3 more lists"), (PASSES, None)])
def test_how_to_get_more_lanes_is_said_until_there_are_all(
    network: Network, more: str | None, server: BfRuntimeServer
) -> None:
    with closing(tofino_driver(network, server.target)) as driver:
        said = driver.limits.more_lanes
    assert said is None if more is None else more in (said or "")


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        ("acc", "has no lanes: it is not p4/tofino/inagg.p4"),
        ("tags", "has no table tags: it is not p4/tofino/inagg.p4, or of another version"),
    ],
)
def test_a_program_that_is_not_ours_is_refused(left_out: str, says: str) -> None:
    tables = [table for table in PROGRAM["tables"] if not table["name"].endswith(f".{left_out}")]
    with BfRuntimeServer(description={"tables": tables}) as other, pytest.raises(DriverError, match=says):
        tofino_driver(NETWORK, other.target)


def test_a_server_that_is_not_there_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(DriverError, match=rf"no BF Runtime server answers on {target}: is bf_switchd running there"):
        tofino_driver(NETWORK, target)


def test_a_server_of_another_protocol_is_named() -> None:
    with (
        P4RuntimeServer(build("nat8-32")) as other,
        pytest.raises(DriverError, match=rf"what answers on {other.target} does not speak BF Runtime"),
    ):
        tofino_driver(NETWORK, other.target)


def test_what_an_earlier_control_plane_has_left_is_removed(server: BfRuntimeServer) -> None:
    first = tofino_driver(NETWORK, server.target)
    fresh = {name: dict(found) for name, found in server.tables.items()}
    first.bind(0, make_binding())
    first._plane.close()  # as if it had been killed
    foreign = pb.TableKey(fields=[pb.KeyField(field_id=1, exact=pb.KeyField.Exact(value=(999).to_bytes(4, "big")))])
    server.tables["$pre.mgid"][foreign.SerializeToString(deterministic=True)] = pb.TableEntry(table_id=21, key=foreign)
    with closing(tofino_driver(NETWORK, server.target)) as second:
        assert {name: len(found) for name, found in server.tables.items()} == {
            name: len(found) + (16 if name in (TAGS, MEMBERS) else name == "$pre.mgid") for name, found in fresh.items()
        }
        assert second.counters(0).jobs == {}
        second.bind(0, make_binding(token=3))


def test_a_switch_that_hangs_up_is_noticed(driver: P4Driver, server: BfRuntimeServer) -> None:
    assert driver.died() is None
    server.hang_up.set()
    assert select.select(driver.sentinels, [], [], 10.0)[0]
    assert "serves no more" in (driver.died() or "")
