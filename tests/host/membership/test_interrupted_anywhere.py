"""A signal whose handler raises at any place of a call: its sum comes, or nothing was begun, or all get an error."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from tests.host.interrupting import FILES, SIGNALS, Array, interrupt, interrupt_everywhere
from tests.link.signalling import handler_as_before, set_handler
from tests.link.signalling import interrupt as handler

from inagg_host.allreduce import AllReduce
from inagg_testbed.switch_process import SwitchProcess

from .processes import start_switch

pytestmark = [pytest.mark.usefixtures(handler_as_before.__name__), pytest.mark.timeout(method="thread")]


class _Rank:
    def __init__(self, switch: SwitchProcess, waits: bool, rank: int, job: int) -> None:
        name = f"anywhere-{waits}-{job}"
        self._all_reduce = AllReduce(switch=switch.control, job=name, rank=rank, workers=2, format="fix32")
        self.begin = self._all_reduce if waits else self._all_reduce.submit
        self.close = self._all_reduce.close

    def sum(self, values: Array) -> object:
        return self._all_reduce(values)

    def turns(self) -> str:
        return repr(self._all_reduce._turns)


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with start_switch() as switch:
        yield switch


@pytest.mark.parametrize(("waits", "name"), [(True, "AllReduce.__call__"), (False, "AllReduce.submit")])
def test_the_sum_comes_or_had_not_begun_or_all_get_an_error(switch: SwitchProcess, waits: bool, name: str) -> None:
    set_handler(handler)
    found = interrupt_everywhere(lambda rank, job: _Rank(switch, waits, rank, job), (*FILES, SIGNALS))
    assert found["left out"] == {name}
    assert found["errors"] <= {name, "AllReduce.submit", "Deferred.__init__", "Deferred.__enter__"}
    assert found["came"] >= {"Deferred.__enter__", "make_task", "AllReduce.begin"}


def test_a_close_that_is_interrupted_anywhere_has_left_or_does_the_next_time() -> None:
    set_handler(handler)
    for place in itertools.count():
        left: list[Any] = []
        network = SimpleNamespace(failure=None, close=lambda *_, left=left: left.append(None) or [])
        with patch.object(AllReduce, "_join", return_value=network):
            all_reduce = AllReduce(switch="192.0.2.1:1", job="close", rank=0, workers=2)
        where = interrupt(place, all_reduce.close, (*FILES, SIGNALS))
        all_reduce.close()
        assert len(left) == 1, where
        if where is None:
            assert place > 10
            return
