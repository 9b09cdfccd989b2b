"""A testbed that stays: a process in the background keeps it until it is told to end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from inagg_testbed.topology import State, TopologyError, load, open_topology, start_target, target_entry
from inagg_testbed.topology.processes import Process
from inagg_testbed.topology.state import check_name, folder

from .options import Setup
from .web import live_view

DEFAULT_NAME = "default"
START_LIMIT_S = 150.0  # the first switch on a machine compiles
END_LIMIT_S = 30.0
LOOK_EVERY_S = 0.05


def keep(name: str, setup: Setup) -> None:
    """Make a testbed and keep it until a signal comes. Raises what goes wrong with it."""
    wiring = target_entry(setup.target).wiring
    with (
        live_view(setup.web) as web,
        open_topology(
            setup.workers, setup.link, name=name, wiring=wiring, racks=setup.racks, trunk=setup.trunk, stays=True
        ) as topology,
        start_target(setup.target, topology, [*setup.switch_options(), *web.options]) as running,
    ):
        state = load(name)
        assert state is not None and state.mark == topology.switch.mark
        state.telling(
            control=running.control,
            data=running.data,
            web=web.url,
            leaves=list(running.leaves),
            environment=setup.rank_environment(),
            target=setup.target,
            summary=setup.describe(),
        ).save()
        while running.pid is None or Process.of(running.pid) is not None:
            time.sleep(1.0)
    raise TopologyError("the switch has ended by itself")


def log_of(name: str) -> Path:
    """Where the keeper of a testbed writes what goes wrong."""
    return folder() / f"{name}.log"


def start_keeper(name: str, command: Sequence[str], setup: Setup) -> State:
    """Start ``command``, which calls `keep`, and wait until the testbed stands. Raises `TopologyError`."""
    check_name(name)
    if load(name) is not None:
        raise TopologyError(
            f"there is a testbed {name!r} already. See it: inagg testbed status. "
            f"Remove it: inagg testbed down --name {name}. Or give this one another --name"
        )
    path = log_of(name)
    with path.open("wb") as log:
        keeper = subprocess.Popen(
            [*command, "--name", name, setup.as_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it stays when the terminal closes
        )
    try:
        deadline_s = time.monotonic() + START_LIMIT_S
        while True:
            state = load(name)
            if state is not None and state.owner_pid == keeper.pid and "control" in state.about:
                return state
            if keeper.poll() is not None or time.monotonic() > deadline_s:
                words = path.read_text(errors="replace").strip().removeprefix("Error: ")
                raise TopologyError(words or f"the testbed did not start within {START_LIMIT_S:.0f} s")
            time.sleep(LOOK_EVERY_S)
    except BaseException:
        _end(keeper)
        path.unlink(missing_ok=True)
        raise


def _end(keeper: subprocess.Popen[bytes]) -> None:
    keeper.send_signal(signal.SIGTERM)
    try:
        keeper.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def standing(name: str) -> State:
    """A testbed that `up` has made and that stands. Raises `TopologyError`."""
    state = load(name)
    if state is None or "control" not in state.about:
        raise TopologyError(f"there is no testbed {name!r}. Make it: inagg testbed up --name {name}")
    if state.left_over:
        raise TopologyError(f"testbed {name!r} was killed. Remove what is left: inagg testbed down --name {name}")
    return state


def end_owner(state: State) -> None:
    """Have the process that made a testbed end, which removes it; kill it if it does not."""
    state.owner.send(signal.SIGTERM)
    deadline_s = time.monotonic() + END_LIMIT_S
    while state.owner.alive and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
    while state.owner.alive:
        state.owner.send(signal.SIGKILL)
        time.sleep(LOOK_EVERY_S)
