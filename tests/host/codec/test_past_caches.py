"""Which sums are expected to find their memory in a cache."""

from __future__ import annotations

from inagg_host.codec.past_caches import ADDRESSES_MOST, FAR_BYTES, Recent

HERE, THERE = 4096, 8192


def test_what_was_never_written_is_far() -> None:
    assert Recent().is_far(HERE, 1, 0)


def test_what_is_written_again_at_once_is_not_far() -> None:
    recent = Recent()
    recent.is_far(HERE, 100, 0)
    assert not recent.is_far(HERE, 100, 0)


def test_it_is_far_if_more_than_a_cache_was_written_meanwhile() -> None:
    recent = Recent()
    recent.is_far(HERE, 100, 0)
    recent.is_far(THERE, FAR_BYTES - 101, 0)
    assert not recent.is_far(HERE, 100, 0)
    recent.is_far(THERE, FAR_BYTES - 100, 0)
    assert recent.is_far(HERE, 100, 0)


def test_a_sum_as_large_as_a_cache_is_far_from_itself() -> None:
    recent = Recent()
    recent.is_far(HERE, FAR_BYTES, 0)
    assert recent.is_far(HERE, FAR_BYTES, 0)
    assert recent.is_far(HERE, FAR_BYTES // 2, FAR_BYTES // 2), "what it reads counts"


def test_addresses_that_do_not_come_back_are_forgotten() -> None:
    recent = Recent()
    for address in range(3 * ADDRESSES_MOST):
        recent.is_far(address, FAR_BYTES // 4, 0)
        assert len(recent._written) <= ADDRESSES_MOST
    assert not recent.is_far(3 * ADDRESSES_MOST - 1, 1, 0)
