"""Epochs that end: the rank joins again, with what it has, as often as it takes, and gives up when that is in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.core import Engine, Epoch
from inagg_host.membership.endpoint import Endpoint
from inagg_host.membership.network import REJOINS_MAX, Network
from inagg_host.membership.session import Loss, Session
from inagg_link.around import LinkAround
from inagg_link.base import Batch, Link
from inagg_proto.v1 import control_pb2 as pb
from inagg_testbed.switch_process import SwitchProcess
from inagg_wire import header as wire

from .processes import start_switch

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


def wait_for(what: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


def network_of(all_reduce: AllReduce) -> Network:
    assert all_reduce._network is not None
    return all_reduce._network


def lose_epoch(all_reduce: AllReduce) -> None:
    """The switch tells that the epoch is over."""
    network = network_of(all_reduce)
    network._session._tell(network._session._epoch, Loss("for a test"))


def lose_epochs(all_reduce: AllReduce, count: int) -> None:
    """So many epochs end as soon as they have begun."""
    for _ in range(count):
        epochs = all_reduce.counters.epochs
        lose_epoch(all_reduce)
        wait_for(lambda epochs=epochs: all_reduce.counters.epochs > epochs)  # type: ignore[misc]


class Silent(LinkAround):
    """A link by which nothing comes."""

    def receive(self, timeout_s: float) -> list[Batch]:
        """Nothing of what has come."""
        super().receive(timeout_s)
        return []


def test_a_rank_gives_up_when_epoch_after_epoch_ends_without_a_sum(switch: SwitchProcess) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="in-vain", wrap_link=Silent) as all_reduce:
        all_reduce.submit(np.ones(100, np.float32))
        wait_for(lambda: bool(network_of(all_reduce)._tasks))
        lose_epochs(all_reduce, REJOINS_MAX)
        lose_epoch(all_reduce)
        wait_for(lambda: all_reduce.failure is not None)
        why = "job 'in-vain' is over: for a test, as 8 epochs before ended without a result"
        assert str(all_reduce.failure) == why


def test_epochs_that_end_while_there_is_nothing_to_sum_are_not_in_vain(switch: SwitchProcess) -> None:
    """A job that evaluates, or sits in a notebook over night, lives through any number of short cuts."""
    with AllReduce(switch=switch.control, rank=0, workers=1, job="idle") as all_reduce:
        lose_epochs(all_reduce, REJOINS_MAX + 1)
        assert (all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S) == 1).all()


def test_an_epoch_that_ends_before_its_rank_has_begun_it_is_lost_all_the_same(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits for a processor between the answer to its Join and what comes of it hears of the end then."""
    made = [lambda rank=rank: AllReduce(switch=switch.control, rank=rank, workers=2, job="brief") for rank in (0, 1)]
    ranks: list[AllReduce] = [None, None]  # type: ignore[list-item]

    def make(rank: int) -> None:
        ranks[rank] = made[rank]()

    threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    network, told = network_of(ranks[0]), list[Loss]()
    join, on_loss = network._session.join, network._session._lost

    def heard(loss: Loss) -> None:
        told.append(loss)
        on_loss(loss)

    def held(*arguments: Any, **options: Any) -> Epoch:
        epoch = join(*arguments, **options)
        monkeypatch.setattr(network._session, "join", join)
        monkeypatch.setattr(network._session, "_lost", heard)
        wait_for(lambda: ranks[1].counters.epochs == 2)
        lose_epoch(ranks[1])  # which asks the switch for a new one
        wait_for(lambda: bool(told))
        return epoch

    monkeypatch.setattr(network._session, "join", held)
    lose_epoch(ranks[0])
    wait_for(lambda: bool(told))
    works = [rank.submit(np.ones(100, np.float32)) for rank in ranks]
    assert all((work.result(PATIENCE_S) == 2).all() for work in works)
    for rank in ranks:
        rank.close()


def test_a_loss_before_the_new_epoch_has_begun_here_begins_no_other(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank would join again as of the epoch before, and go back to blocks that are no more."""
    with AllReduce(switch=switch.control, rank=0, workers=1, job="early") as all_reduce:
        network, begun = network_of(all_reduce), list[str]()
        join, post, aside = network._session.join, network.transport.post, network._aside

        def joined(*arguments: Any, **options: Any) -> Epoch:
            epoch = join(*arguments, **options)
            monkeypatch.setattr(network.transport, "post", late)
            return epoch

        def late(call: Callable[[], None]) -> None:
            network._on_loss(Loss("too early"))
            post(call)

        def noted(name: str, call: Callable[[], None]) -> None:
            begun.append(name)
            aside(name, call)

        monkeypatch.setattr(network._session, "join", joined)
        monkeypatch.setattr(network, "_aside", noted)
        lose_epoch(all_reduce)
        wait_for(lambda: all_reduce.counters.epochs == 2)
        monkeypatch.undo()
        assert begun == ["inagg-rejoin"]
        assert (all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S) == 1).all()


class Loses(LinkAround):
    """A link that loses what is sent for the first slot that it sees."""

    first: int | None = None

    def send(self, batch: Batch) -> int:
        """Send the rest."""
        rows = batch.data.reshape(-1, batch.size)
        slots = [wire.parse(row.tobytes()).header.slot for row in rows]
        self.first = slots[0] if self.first is None else self.first
        kept = [row for row, slot in zip(rows, slots, strict=True) if slot != self.first]
        if kept:
            self.link.send(Batch(np.concatenate(kept), batch.size, batch.peer))
        return len(rows)

    def port(self) -> None:
        """None: it has to see all that is sent."""


def test_a_rank_that_lacks_the_first_block_says_that_it_has_later_ones(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a new process could take the place of one whose values are in them, and ranks would get different sums."""
    links = list[Loses]()

    def wrap(link: Link) -> Link:
        links.append(Loses(link))
        return links[-1]

    with AllReduce(switch=switch.control, rank=0, workers=1, job="ahead", wrap_link=wrap) as all_reduce:
        network, brought = network_of(all_reduce), list[pb.Resume]()
        join = network._session.join
        work = all_reduce.submit(np.ones(3 << 20, np.float32))
        wait_for(lambda: network.engine.has_results)

        def noted(bind: Any, resume: pb.Resume, **options: Any) -> Epoch:
            brought.append(resume)
            return join(bind, resume, **options)

        monkeypatch.setattr(network._session, "join", noted)
        lose_epoch(all_reduce)
        wait_for(lambda: bool(brought))
        assert [shard.next_block for shard in brought[0].shards] == [0]
        assert brought[0].has_results
        links[0].first = -1  # it loses nothing more
        assert (work.result(PATIENCE_S) == 1).all()


def test_an_epoch_that_both_the_link_and_the_switch_call_over_counts_once(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale token shows it, the rank joins again, and then the switch says so."""
    with AllReduce(switch=switch.control, rank=0, workers=1, job="twice") as all_reduce:
        network, done = network_of(all_reduce), list[str]()
        monkeypatch.setattr(network, "_aside", lambda name, _: done.append(name))
        monkeypatch.setattr(network, "_in_vain", REJOINS_MAX - 1)
        network._on_loss(Loss("for a test"))
        network._in_vain += 1  # as `_rejoin` does
        network._on_loss(Loss("for a test"))
        assert done == ["inagg-rejoin"]


def test_a_rank_that_has_had_a_sum_between_them_joins_epoch_after_epoch(switch: SwitchProcess) -> None:
    with AllReduce(switch=switch.control, rank=0, workers=1, job="not-in-vain") as all_reduce:
        for _ in range(2):
            lose_epochs(all_reduce, REJOINS_MAX)
            assert (all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S) == 1).all()


def test_an_epoch_that_does_not_fit_is_an_error_of_what_waits(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(engine: Engine, epoch: Epoch, now: float) -> None:
        raise ValueError("it does not fit, for a test")

    with AllReduce(switch=switch.control, rank=0, workers=1, job="unlike", wrap_link=Silent) as all_reduce:
        work = all_reduce.submit(np.ones(100, np.float32))
        monkeypatch.setattr(Engine, "resume", fail)
        lose_epoch(all_reduce)
        with pytest.raises(AllReduceError, match=r"^it does not fit, for a test$"):
            work.result(PATIENCE_S)


@pytest.fixture
def wants(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a rank has offered to listen to groups, each time that it joined."""
    join, wants = Session.join, list[bool]()

    def noted(session: Session, *arguments: Any, multicast: bool = False) -> Epoch:
        wants.append(multicast)
        return join(session, *arguments, multicast=multicast)

    monkeypatch.setattr(Session, "join", noted)
    return wants


def deaf_from(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A rank cannot listen when it tries for the time of that number."""
    listen, tried = Endpoint.listen, list[Epoch]()

    def fail(endpoint: Endpoint, epoch: Epoch) -> str | None:
        tried.append(epoch)
        if len(tried) != number:
            return listen(endpoint, epoch)
        endpoint.listens = False
        return "it cannot listen, for a test"

    monkeypatch.setattr(Endpoint, "listen", fail)


def test_a_rank_that_joins_again_offers_again_to_listen_to_groups(switch: SwitchProcess, wants: list[bool]) -> None:
    """Else all would be sent to each rank from then on."""
    with AllReduce(switch=switch.control, rank=0, workers=1, job="listens") as all_reduce:
        lose_epochs(all_reduce, 1)
    assert wants == [True, True]


def test_a_rank_that_cannot_listen_to_groups_can_join_again_later_as_others(
    switch: SwitchProcess, wants: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf_from(monkeypatch, 1)
    with AllReduce(switch=switch.control, rank=0, workers=1, job="deaf") as all_reduce:
        lose_epochs(all_reduce, 2)
        assert (all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S) == 1).all()
    assert wants == [True, False, False, False]


def test_a_rank_that_can_listen_to_groups_no_more_joins_again_without(
    switch: SwitchProcess, wants: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf_from(monkeypatch, 2)
    with AllReduce(switch=switch.control, rank=0, workers=1, job="deafened") as all_reduce:
        lose_epoch(all_reduce)
        wait_for(lambda: all_reduce.counters.epochs == 3)
        assert (all_reduce.submit(np.ones(100, np.float32)).result(PATIENCE_S) == 1).all()
    assert wants == [True, True, False]
