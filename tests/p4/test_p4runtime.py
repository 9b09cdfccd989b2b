"""The bmv2 driver over P4Runtime, against a server in this process that interprets the program."""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from tests.switch.aggregation.world import make_binding, simple_contribution

from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb
from inagg_switch.binding import Address, Place, Uplink
from inagg_switch.driver import DriverError
from inagg_switch.p4 import grpc_stream as stream
from inagg_switch.p4.bmv2.bmv2_plane import BY_ROLE, Bmv2Plane, bmv2_driver
from inagg_switch.p4.bmv2.bmv2_program import job_entries
from inagg_switch.p4.bmv2.p4runtime_client import Client
from inagg_switch.p4.bmv2.p4runtime_info import P4Names, number_bytes, read_p4info
from inagg_switch.p4.builds import LEAF, build, builds
from inagg_switch.p4.grpc_stream import WriteFailed
from inagg_switch.p4.plane import Cell, Count, Delete, Entry, Insert, Masked
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.noise_keys import BlockKey

from .p4runtime_server import P4RuntimeServer
from .rig import Rig, make_network
from .traffic import EVERYONE, Traffic, jobs_for

PROGRAM = build("nat8-32")
WORKERS: tuple[Address, ...] = (("10.77.0.1", 5001), ("10.77.0.2", 5002), ("10.77.0.3", 5003))
NETWORK = make_network([address for address, _ in WORKERS])


@pytest.fixture
def server() -> Iterator[P4RuntimeServer]:
    with P4RuntimeServer(PROGRAM) as running:
        yield running


def test_jobs_run_over_p4runtime_as_in_the_model(server: P4RuntimeServer) -> None:
    driver = bmv2_driver(PROGRAM, make_network(EVERYONE), server.target)
    with closing(driver):
        assert server.switch is not None
        rig = Rig(driver, server.switch)
        traffic = Traffic(rig, jobs_for(["nat8"], 8), seed=4)
        for _ in range(5):
            traffic.play(60)
            rig.check_counters()
        traffic.new_epoch()
        traffic.play(60)
        rig.check_counters()


def test_a_driver_that_closes_takes_its_jobs_along(server: P4RuntimeServer) -> None:
    driver = bmv2_driver(PROGRAM, NETWORK, server.target)
    driver.bind(0, make_binding(7, n=3, children=WORKERS))
    assert server.switch is not None
    assert server.switch.tables["binding"].rows
    driver.close()
    assert server.switch.tables["binding"].rows == []
    assert sorted(server.switch.groups) == [1]
    driver.close()


def test_slots_are_unknown_without_thrift(server: P4RuntimeServer) -> None:
    with closing(bmv2_driver(PROGRAM, NETWORK, server.target)) as driver:
        driver.bind(0, make_binding(7, n=3, children=WORKERS))
        assert driver.waiting(0, 7, 10) is None


def test_a_job_that_the_switch_refuses_leaves_nothing_behind(server: P4RuntimeServer) -> None:
    with closing(bmv2_driver(PROGRAM, NETWORK, server.target)) as driver:
        assert server.switch is not None
        server.fail_next_insert = "the table is full"
        binding = make_binding(7, n=3, children=WORKERS)
        with pytest.raises(DriverError, match=r"update 0: the table is full"):
            driver.bind(0, binding)
        assert server.switch.tables["binding"].rows == []
        assert driver.counters(0).jobs == {}
        rig = Rig(driver, server.switch)
        rig.bind(binding)
        for rank, worker in enumerate(WORKERS):
            rig.receive(simple_contribution(binding, rank, 0), worker)
        rig.check_counters()


def test_a_second_controller_is_told_that_there_is_one(server: P4RuntimeServer) -> None:
    first = closing(Client(server.target, election=5))
    with first, pytest.raises(DriverError, match="another controller is the primary"):
        Client(server.target, election=4)


def test_a_second_controller_with_the_same_number_is_told_that_there_is_one(server: P4RuntimeServer) -> None:
    with (
        closing(Client(server.target)),
        pytest.raises(DriverError, match="another controller is the primary"),
    ):
        Client(server.target)


def test_who_is_no_longer_primary_is_told(server: P4RuntimeServer) -> None:
    with (
        closing(Client(server.target, election=1)) as old,
        closing(Client(server.target, election=2)),
        pytest.raises(DriverError, match=r"refused Write: PERMISSION_DENIED"),
    ):
        old.write([])


def test_a_server_that_is_not_there_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(DriverError, match=rf"no P4Runtime server answers on {target}: is simple_switch_grpc running"):
        Client(target)


def test_the_end_of_the_switch_is_noticed(server: P4RuntimeServer) -> None:
    plane = Bmv2Plane(PROGRAM, server.target)
    assert plane.died() is None
    server.close()
    assert select.select(plane.sentinels, [], [], 10)[0] == list(plane.sentinels)
    assert "serves no more" in str(plane.died())
    with pytest.raises(DriverError, match="serves no more"):
        plane.counts([Cell("results", 0)])
    plane.close()


def test_a_switch_that_has_come_up_at_the_address_of_the_old_one_is_not_spoken_to(
    server: P4RuntimeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, entry = Cell("results", 0), Entry("forward", (("destination", 1),), "to_port", (("port", 1),))
    with closing(Bmv2Plane(PROGRAM, server.target)) as old:
        server.close()
        assert select.select(old.sentinels, [], [], 10)[0]
        monkeypatch.setattr(P4RuntimeServer, "port", int(server.target.rpartition(":")[2]))
        with P4RuntimeServer(PROGRAM) as again, closing(Bmv2Plane(PROGRAM, again.target)) as new:
            assert new.counts([cell]) == {cell: Count(0, 0)}
            for ask in (lambda: old.counts([cell]), lambda: old.write([Insert(entry)])):
                with pytest.raises(DriverError, match="serves no more"):
                    ask()
            assert again.written == []


def test_a_job_whose_entries_the_switch_writes_too_late_leaves_nothing_behind(
    server: P4RuntimeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(bmv2_driver(PROGRAM, NETWORK, server.target)) as driver:
        assert server.switch is not None
        monkeypatch.setattr(stream, "CALL_S", 0.3)
        server.writes_go_on.clear()
        with pytest.raises(DriverError, match=r"the P4Runtime server on .* has not answered Write in time: does"):
            driver.bind(0, make_binding(7, n=3, children=WORKERS))
        with pytest.raises(DriverError, match="would share slots with job 7"):  # as long as it may have any of them
            driver.bind(0, make_binding(8, n=3, children=WORKERS))
        server.writes_go_on.set()
        monkeypatch.undo()
        driver.unbind(0, 7)
        assert server.switch.tables["binding"].rows == []
        driver.bind(0, make_binding(8, n=3, children=WORKERS))


def test_counters_of_which_some_are_told_are_an_error_and_the_next_ones_are_whole(server: P4RuntimeServer) -> None:
    cells = [Cell("results", row) for row in range(3)]
    with closing(Bmv2Plane(PROGRAM, server.target)) as plane:
        server.reads_end_after = 2
        with pytest.raises(DriverError, match="refused Read: UNAVAILABLE, broken off"):
            plane.counts(cells)
        assert list(plane.counts(cells)) == cells


def test_updates_after_one_that_fails_are_done(server: P4RuntimeServer) -> None:
    plane = Bmv2Plane(PROGRAM, server.target)
    with closing(plane):
        entries = [Entry("forward", (("destination", mac),), "to_port", (("port", 1),)) for mac in (1, 1, 2)]
        with pytest.raises(WriteFailed) as failed:
            plane.write([Insert(entry) for entry in entries])
        assert failed.value.failures == ((1, 6, "it exists"),)
        assert server.switch is not None
        assert sorted(server.switch.tables["forward"].by_value) == [(1,), (2,)]


def test_to_delete_what_is_not_there_is_no_error(server: P4RuntimeServer) -> None:
    plane = Bmv2Plane(PROGRAM, server.target)
    with closing(plane):
        there, not_there = (Entry("forward", (("destination", mac),), "to_port", (("port", 1),)) for mac in (1, 2))
        plane.write([Insert(there)])
        plane.write([Delete(not_there), Delete(there)])
        assert server.switch is not None
        assert server.switch.tables["forward"].by_value == {}


@pytest.mark.parametrize("name", sorted(builds()))
def test_every_program_has_what_the_driver_names(name: str) -> None:
    names = P4Names(read_p4info(builds()[name].p4info))
    for item in job_entries(make_binding(1, n=3, children=WORKERS), NETWORK, 0, 1):
        names.entity(item)


@pytest.mark.parametrize("name", ["nat8-32", "nat8-32-leaf"])
def test_the_tables_of_a_program_hold_the_entries_of_as_many_jobs_as_it_has(name: str) -> None:
    chosen = build(name)
    children = tuple(("10.77.0.1", 5001 + rank) for rank in range(CHILDREN_MAX))
    uplink = Uplink(("10.77.0.2", 47101), base=0, parts=1, key=BlockKey(1, 2))
    place = Place(CHILDREN_MAX, uplink=uplink) if chosen.role == LEAF else None
    job = replace(make_binding(1, n=CHILDREN_MAX, children=children), place=place)
    entries = [i for i in BY_ROLE[chosen.role].job_entries(job, NETWORK, 0, 1) if isinstance(i, Entry)]
    sizes = {table.preamble.alias: table.size for table in read_p4info(chosen.p4info).tables}
    for table, count in Counter(entry.table for entry in entries).items():
        assert count * chosen.jobs == sizes[table], table


def test_a_program_of_another_version_is_named() -> None:
    names = P4Names(pb.P4Info())
    with pytest.raises(DriverError, match=r"has no to_port: its P4Info is of another version"):
        names.entity(Entry("forward", (("destination", 1),), "to_port", (("port", 1),)))
    with pytest.raises(DriverError, match=r"has no counter sent|has no sent"):
        names.counter(Cell("sent", 0))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "00"), (1, "01"), (255, "ff"), (256, "0100"), (1 << 47, "80" + 10 * "0")]
)
def test_numbers_are_as_short_as_they_can_be(value: int, text: str) -> None:
    assert number_bytes(value).hex() == text


def test_ternary_fields_and_counters_have_the_numbers_of_the_p4info() -> None:
    names = P4Names(read_p4info(PROGRAM.p4info))
    entry = Entry("binding", (("job", Masked(7, 0xFFFF)),), "refuse", (("reason", 34),), priority=2)
    message = names.entity(entry).table_entry
    table = next(t for t in names.info.tables if t.preamble.name == "binding")
    assert message.table_id == table.preamble.id
    assert [(m.field_id, m.ternary.value, m.ternary.mask) for m in message.match] == [(1, b"\x07", b"\xff\xff")]
    assert message.priority == 2
    cell = Cell("results", 3)
    read = names.counter(cell)
    read.counter_entry.data.packet_count = 9
    assert names.count(read) == (cell, Count(9, 0))
