"""Gathers of compressed vectors that go wrong: whom the error names, and that ranks which gather different things hear
of it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from inagg_host.compress import TopK
from inagg_host.compress.exchange import Exchange, Gather
from inagg_host.compress.memory import Memories
from inagg_host.errors import AllReduceError

GLOO = "Connection closed by peer [127.0.0.1]:40138"


def one_rank(gather: Gather, failure: AllReduceError | None = None) -> tuple[Exchange, SimpleNamespace]:
    sums = SimpleNamespace(failure=failure)
    return Exchange(cast(Any, sums), 0, 2, 1, gather), sums


def reduce(exchange: Exchange, call: int = 0) -> Any:
    return exchange.begin(TopK(1.0), {0: np.ones(5, np.float32)}, Memories(), call)()


def lose_a_rank(_message: bytes) -> list[bytes]:
    raise RuntimeError(GLOO)


def test_a_rank_that_is_gone_is_named_as_soon_as_the_switch_has_said_so() -> None:
    exchange, sums = one_rank(lose_a_rank)
    told = threading.Timer(0.2, setattr, (sums, "failure", AllReduceError("rank 1 has been silent for 2.1 s")))
    told.start()
    with pytest.raises(AllReduceError, match=r"^rank 1 has been silent for 2\.1 s; then gathering .*Connection closed"):
        reduce(exchange)
    told.join()


def test_where_the_switch_says_nothing_the_inner_groups_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_host.compress.exchange.NAMED_S", 0.1)
    with pytest.raises(AllReduceError, match=r"^gathering compressed vectors failed: Connection closed"):
        reduce(one_rank(lose_a_rank)[0])


def test_ranks_that_gather_different_things_get_an_error() -> None:
    sent: list[bytes] = []

    def gather(message: bytes) -> list[bytes]:
        sent.append(message)
        return [message, sent[0]]

    exchange, _ = one_rank(gather)
    (total,) = reduce(exchange, call=1).values()
    assert total.tolist() == [2.0] * 5
    with pytest.raises(AllReduceError, match="rank 1 gathers something else than rank 0, which gathers 1 vectors"):
        reduce(exchange, call=2)
