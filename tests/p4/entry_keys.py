"""By what a switch tells entries apart."""

from __future__ import annotations

from inagg_switch.p4.plane import Entry, Group


def key_of(what: Entry | Group) -> tuple[object, ...]:
    """What no two entries, and no two groups, of a switch share."""
    return (what.number,) if isinstance(what, Group) else (what.table, what.match, what.priority)
