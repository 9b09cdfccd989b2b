"""Ctrl-C and SIGTERM, at any time: demo, testbed and bench end, and leave nothing."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.link.signalling import come, handled
from tests.testbed.leftovers import run_and_signal

from inagg.signals import Terminated, terminated_like_ctrl_c
from inagg_testbed.topology import State, load, open_topology, opening, state

ENDING = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_unwinds_like_ctrl_c_with_its_own_status(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, terminated_like_ctrl_c():
        signal.raise_signal(number)
    assert isinstance(caught.value, Terminated)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_a_command_ignores_at_its_end_stays_ignored() -> None:
    """Else a second SIGTERM would end the process in its last moments, with status 143 for one that has ended well."""
    try:
        with terminated_like_ctrl_c():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_comes_in_a_weak_references_callback_is_not_lost(number: signal.Signals) -> None:
    """Python drops what is raised there."""

    class Thing:
        pass

    thing = Thing()
    watch = weakref.ref(thing, lambda _: signal.raise_signal(number))
    with pytest.raises(KeyboardInterrupt) as caught, terminated_like_ctrl_c():  # noqa: PT012
        del thing
        assert watch() is None
        threading.Event().wait(10)
    assert getattr(caught.value, "exit_code", 130) == 128 + number


@pytest.mark.parametrize("number", [*ENDING, signal.SIGHUP])
def test_a_topology_that_is_taken_down_is_gone_before_a_signal_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Also where another thread takes the signal."""
    tear_down = opening.tear_down

    def interrupted(made: State) -> None:
        come(number)
        tear_down(made)

    monkeypatch.setattr(state, "folder", lambda: tmp_path)
    monkeypatch.setattr(opening, "tear_down", interrupted)
    with handled(), pytest.raises(KeyboardInterrupt), open_topology(1, name="here"):
        pass
    assert load("here") is None


@pytest.mark.parametrize("number", ENDING)
def test_a_topology_that_is_made_is_made_whole_and_gone_when_a_signal_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    refuse, done = opening._refuse_foreign, []

    def interrupted(made: State) -> None:
        come(number)
        refuse(made)
        done.append(made.name)

    monkeypatch.setattr(state, "folder", lambda: tmp_path)
    monkeypatch.setattr(opening, "_refuse_foreign", interrupted)
    with handled(), pytest.raises(KeyboardInterrupt), open_topology(1, name="here"):
        pytest.fail("it is used")
    assert done == ["here"]
    assert load("here") is None


@pytest.mark.parametrize("number", ENDING)
def test_a_testbed_whose_script_runs_ends_at_once_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    def both_run(files: Sequence[Path]) -> bool:
        return files[0].read_text().count("runs") == 2

    script = ["sh", "-c", "echo runs; trap '' TERM; sleep 61 & sleep 60"]
    run = run_and_signal(["testbed", "--workers", "2", "--", *script], number, tmp_path, both_run)
    assert run.left == []
    assert run.code == 128 + number
    assert "Traceback" not in run.errors


@pytest.mark.parametrize("number", ENDING)
def test_a_testbed_whose_switch_is_starting_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    def starts(files: Sequence[Path]) -> bool:
        return any("inagg-switch-" in str(path) for path in files)

    run = run_and_signal(["testbed", "--workers", "2", "--", "sleep", "60"], number, tmp_path, starts)
    assert run.left == []
    assert run.code == 128 + number


COMMANDS = {
    "demo": ["demo"],
    "testbed": ["testbed", "--", "sleep", "60"],
    "bench": ["bench", "allreduce", "--workers", "2", "--size", "4M", "--against", "gloo"],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("after_s", [0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 14.0])
@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_signal_at_any_time_leaves_nothing(
    tmp_path: Path, command: str, number: signal.Signals, after_s: float
) -> None:
    run = run_and_signal(COMMANDS[command], number, tmp_path, after_s, to_group=number == signal.SIGINT)
    assert run.left == []
    assert "Traceback" not in run.errors
    assert run.code in (128 + number, 0)  # 0: it had ended by then
