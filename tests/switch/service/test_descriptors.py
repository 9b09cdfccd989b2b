"""Descriptors of files and connections: a warning before they run out, and when they have."""

from __future__ import annotations

import resource

import pytest

from inagg_switch.service.descriptors import shortage, why_too_few


def test_where_none_is_left_to_look_with_all_are_open() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # fewer than are open
    try:
        found = shortage()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == (3, 3)


@pytest.mark.parametrize(
    ("limit", "shards", "needed"),
    [(16, 1, 33), (32, 1, 33), (33, 1, None), (33, 2, 36), (30, 0, None), (resource.RLIM_INFINITY, 64, None)],
)
def test_a_switch_says_how_many_it_needs_to_begin(limit: int, shards: int, needed: int | None) -> None:
    why = why_too_few(limit, shards)
    assert (why is None) == (needed is None)
    if why is not None:
        assert f"may have {limit} files and connections open, and needs {needed}, and one more for each worker" in why
