"""Descriptors of files and connections: a warning before they run out, and when they have."""

from __future__ import annotations

import resource

from inagg_switch.service.descriptors import shortage


def test_where_none_is_left_to_look_with_all_are_open() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # fewer than are open
    try:
        found = shortage()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == (3, 3)
