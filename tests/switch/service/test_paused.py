"""A switch whose process stood still for longer than ranks may be silent gives nobody up for that."""

from __future__ import annotations

import time

from inagg_switch.control.states import JobState

from .serving import Serving


def test_a_switch_that_stood_still_gives_nobody_up(switch: Serving) -> None:
    switch.join_all()
    controller, began_s = switch.server.controller, time.monotonic()
    assert controller is not None
    job = controller.registry.jobs.by_name["job"]
    controller.now = lambda: time.monotonic() + 60  # as if it had been stopped until now
    switch.until(lambda: controller._ticked_at > began_s + 60)
    time.sleep(2 * controller.policy.tick_interval_s)
    assert job.state is JobState.RUNNING
    assert [member.rank for member in job.roster if not member.alive] == []
