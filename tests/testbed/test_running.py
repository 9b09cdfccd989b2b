"""A script on every worker: its environment, its words, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from inagg_testbed.testbed import running
from inagg_testbed.testbed.running import run_script
from inagg_testbed.topology import MARK, Topology, open_topology, processes, state
from inagg_testbed.topology.processes import end_all, processes_of

Said = list[tuple[int, str, str]]


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topology]:
    monkeypatch.setattr(state, "folder", lambda: tmp_path)
    with open_topology(3) as topology:
        yield topology


def python(source: str) -> list[str]:
    return [sys.executable, "-S", "-c", source]


def test_ranks_find_what_torchrun_sets_and_where_the_switch_is(topology: Topology) -> None:
    said: Said = []
    source = "import json, os; print(json.dumps(dict(os.environ)))"
    ends = run_script(topology, python(source), {"INAGG_SWITCH": "1.2.3.4:5"}, lambda *line: said.append(line))
    assert [end.exit_code for end in ends] == [0, 0, 0]
    environments = [json.loads(line) for _, _, line in sorted(said)]
    assert [environment["RANK"] for environment in environments] == ["0", "1", "2"]
    for environment in environments:
        assert environment["WORLD_SIZE"] == "3"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == environments[0]["MASTER_PORT"]
        assert environment["INAGG_SWITCH"] == "1.2.3.4:5"
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"


def test_hosts_of_several_ranks_find_what_torchrun_sets_on_each(topology: Topology) -> None:
    said: Said = []
    source = "import json, os; print(json.dumps(dict(os.environ)))"
    ends = run_script(topology, python(source), {}, lambda *line: said.append(line), local_size=2)
    assert len(ends) == 6
    environments = [json.loads(line) for _, _, line in sorted(said)]
    places = [[e[name] for name in ("RANK", "GROUP_RANK", "LOCAL_RANK")] for e in environments]
    assert places == [[str(rank), str(rank // 2), str(rank % 2)] for rank in range(6)]
    for environment in environments:
        sizes = [environment[name] for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")]
        assert sizes == ["6", "3", "2"]
        assert environment["INAGG_LOCAL_SIZE"] == "2"


def test_lines_are_passed_on_with_their_rank_and_stream_also_without_an_end(topology: Topology) -> None:
    said: Said = []
    source = "import os, sys; print('a\\nb'); sys.stderr.write('c' + os.environ['RANK'])"
    run_script(topology, python(source), {}, lambda *line: said.append(line))
    for rank in range(3):
        assert [(kind, line) for r, kind, line in said if r == rank and kind == "out"] == [("out", "a"), ("out", "b")]
        assert (rank, "err", f"c{rank}") in said


def test_a_rank_that_fails_ends_the_others_and_its_status_is_told(topology: Topology) -> None:
    source = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    ends = run_script(topology, python(source), {}, lambda *line: None)
    assert ends[1].exit_code == 7
    assert not ends[1].asked
    assert [(ends[r].exit_code, ends[r].asked) for r in (0, 2)] == [(128 + signal.SIGTERM, True)] * 2


def test_a_rank_that_has_failed_by_itself_since_it_was_looked_at_is_not_told_to_end(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, left = tmp_path / "go", running.ranks_left

    def when_all_have_ended(ranks: Sequence[subprocess.Popen[bytes]], ended: Mapping[int, running.Ended]) -> list[int]:
        go.touch()
        for process in ranks:
            if process.returncode is None:
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return left(ranks, ended)

    monkeypatch.setattr(running, "ranks_left", when_all_have_ended)
    source = (
        "import os, sys, time\n"
        f"while os.environ['RANK'] != '0' and not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "sys.exit(7)\n"
    )
    ends = run_script(topology, python(source), {}, lambda *line: None)
    assert [(end.exit_code, end.asked) for end in ends] == [(7, False)] * 3


@pytest.mark.parametrize(
    ("state_and_flags", "is_so"),
    [("R {} 0 0 0 0 4194304", False), ("R {} 0 0 0 0 4194308", True), ("Z {} 0 0 0 0 4194304", True)],
)
def test_a_process_in_its_last_call_is_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_and_flags: str, is_so: bool
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a name) {state_and_flags.format(1)} 1 2 3\n")
    assert processes.is_ending(7) == is_so
    assert processes.is_ending(8)


def test_a_program_that_is_not_there_is_status_127(topology: Topology) -> None:
    said: Said = []
    ends = run_script(topology, ["no-such-program"], {}, lambda *line: said.append(line))
    assert 127 in [end.exit_code for end in ends]
    assert any("no-such-program" in line for _, _, line in said)


def test_a_program_that_may_not_be_run_is_status_126(topology: Topology) -> None:
    ends = run_script(topology, ["/"], {}, lambda *line: None)
    assert {end.exit_code for end in ends if not end.asked} == {126}


def test_a_long_line_is_cut_between_characters(topology: Topology) -> None:
    said: list[str] = []
    source = "import sys; sys.stdout.buffer.write(('x' + 'é€🙂' * 20_000 + '\\n').encode())"
    run_script(topology, python(source), {}, lambda rank, kind, line: said.append(line) if rank == 0 else None)
    assert len(said) > 1
    assert "".join(said) == "x" + "é€🙂" * 20_000


def test_an_exception_leaves_no_rank_behind(topology: Topology) -> None:
    class Stop(Exception):
        pass

    def say(rank: int, kind: str, line: str) -> None:
        raise Stop

    with pytest.raises(Stop):
        run_script(topology, python("import time; print('here', flush=True); time.sleep(60)"), {}, say)
    assert processes_of(topology.switch.mark) == []


def test_after_ctrl_c_ranks_may_still_save_and_say_so(topology: Topology) -> None:
    said: Said = []

    def say(rank: int, kind: str, line: str) -> None:
        said.append((rank, kind, line))
        if sum(text == "here" for _, _, text in said) == 3 and line == "here":
            raise KeyboardInterrupt

    source = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "print('here', flush=True); time.sleep(60)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        run_script(topology, python(source), {}, say)
    assert sorted(line for line in said if line[2] == "saved") == [(rank, "err", "saved") for rank in range(3)]
    assert processes_of(topology.switch.mark) == []


def test_what_a_script_leaves_running_is_found_by_its_mark_and_ended(topology: Topology) -> None:
    # deaf to SIGTERM, in a session of its own, its parent gone
    source = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    os.close(1); os.close(2); time.sleep(60)\n"
    )
    run_script(topology, python(source), {}, lambda *line: None)
    mark = topology.switch.mark
    assert len(processes_of(mark)) == 3
    assert len(end_all(lambda: processes_of(mark), term_limit_s=0.2)) == 3
    assert processes_of(mark) == []


def test_a_program_dies_with_who_started_it(topology: Topology) -> None:
    source = (
        "import subprocess, time\n"
        "from inagg_testbed.topology.launch import launcher\n"
        "subprocess.Popen(launcher(None, ['sleep', '60']))\n"
        "time.sleep(60)\n"
    )
    mark = topology.workers[0].mark
    parent = subprocess.Popen([sys.executable, "-c", source], env={**os.environ, MARK: mark})
    deadline_s = time.monotonic() + 20
    while not any(process.command().startswith("sleep") for process in processes_of(mark)):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    while processes_of(mark):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
